"""CLER in Avalanche: replay on a class-incremental benchmark, with the regularizer as a plugin.

Needs avalanche-lib, and a torchvision that fits your torch.
"""

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.models import SlimResNet18
from avalanche.training.supervised import Replay
from torch.utils.data import TensorDataset

import cler
from cler.avalanche import EquivariantPlugin


def random_images(count: int) -> TensorDataset:
    """Stands for your dataset: images (normalized, not augmented) and labels."""
    images = TensorDataset(torch.randn(count, 3, 32, 32), torch.arange(count) % 4)
    images.targets = images.tensors[1]
    return images


torch.manual_seed(0)
train, test = (as_classification_dataset(random_images(count)) for count in (64, 16))
benchmark = nc_benchmark(train, test, n_experiences=2, task_labels=False, shuffle=False)

model = SlimResNet18(4)
regularizer = cler.Equivariant(model, "jigsaw", tap="layer3", head="layer4")
strategy = Replay(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    criterion=torch.nn.CrossEntropyLoss(),
    mem_size=20,
    train_mb_size=16,
    plugins=[EquivariantPlugin(regularizer)],
)
for experience in benchmark.train_stream:
    print(f"learning classes {experience.classes_in_this_experience} with CLER on stream and replayed images")
    strategy.train(experience)
strategy.eval(benchmark.test_stream)
