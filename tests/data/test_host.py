"""Images that stay in main memory: where they are put, and that a GPU computes the same bits from them."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import toys
from cler.config.making import make_settings
from cler.data import host
from cler.engine import train
from cler.engine.steps import GraphStepper
from cler.errors import UsageError
from cler.runs.build import build_run


class Cudart:
    """The calls of CUDA that pin memory, noted down."""

    def __init__(self, answer: int = 0) -> None:
        self.answer, self.pinned = answer, {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.pinned[address] = size
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.pinned[address]
        return 0


@pytest.fixture
def cudart(monkeypatch):
    noted = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: noted)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return noted


def test_memory_is_pinned_to_the_byte_and_let_go(cudart):
    pinned = host.Pinned((5, 3, 7, 7))
    address = pinned.memory.data_ptr()
    assert cudart.pinned == {address: 5 * 3 * 7 * 7}
    del pinned
    gc.collect()
    assert not cudart.pinned


def test_what_pytorch_is_told_leads_to_the_images(cudart):
    """NumPy reads the same description, under another name, of memory of the host."""
    images = toys.shades().train_images
    pinned = host.Pinned(images.shape)
    pinned.memory.copy_(images)
    seen = np.asarray(SimpleNamespace(__array_interface__=pinned.__cuda_array_interface__))
    assert np.array_equal(seen, images.numpy())
    pinned.memory[3] += 1
    assert np.array_equal(seen[3], images[3].numpy() + 1)


def test_memory_that_cannot_be_pinned_in_place_is_pytorchs_own(cudart, monkeypatch):
    cudart.answer = 2
    made = []
    monkeypatch.setattr(host, "_pinned_by_pytorch", lambda shape: made.append(shape) or torch.zeros(shape))
    pinned = host.Pinned((5, 3, 7, 7))
    assert made == [(5, 3, 7, 7)]
    assert not pinned.registered
    assert pinned.memory.shape == (5, 3, 7, 7)


def test_memory_that_cannot_be_pinned_is_told_in_one_line(cudart, monkeypatch):
    def none_left(shape):
        raise RuntimeError("CUDA error: out of memory")

    cudart.answer = 2
    monkeypatch.setattr(host, "_pinned_by_pytorch", none_left)
    with pytest.raises(UsageError, match=r"^images host: 0\.0 GB of main memory cannot be pinned"):
        host.Pinned((1, 1, 1, 1))


@pytest.mark.parametrize(
    ("images", "share", "stays"),
    [("auto", 0.49, False), ("auto", 0.51, True), ("device", 0.51, False), ("host", 0.01, True)],
)
def test_where_images_are_put(images, share, stays, monkeypatch):
    """By default on the GPU where training and test images leave half of its free memory."""
    data, put = toys.shades(), []
    size = data.train_images.nbytes + data.test_images.nbytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(size / share), 10 * size))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: put.append(("device", len(tensor))) or tensor)
    monkeypatch.setattr("cler.data.images.on_host", lambda each, device: put.append(("host", len(each))) or each)
    placed = data.to("cuda", images)
    where = "host" if stays else "device"
    train, test = len(data.train_labels), len(data.test_labels)
    assert sorted(put) == sorted([(where, train), (where, test), ("device", train), ("device", test)])
    assert placed.on_host == stays


def test_on_a_cpu_nothing_is_pinned():
    data = toys.shades()
    placed = data.to("cpu", "host")
    assert placed.train_images is data.train_images
    assert not placed.on_host


def test_other_training_images_are_made_where_the_first_ones_are(monkeypatch):
    data, asked = toys.shades(), []
    monkeypatch.setattr("cler.data.images.CHUNK", 7)

    def negative(indices):
        asked.append(len(indices))
        return 255 - data.train_images[indices]

    made = data.with_training_images(negative)
    assert torch.equal(made.train_images, 255 - data.train_images)
    assert max(asked) == 7
    assert made.test_images is data.test_images


def trained(data, count, **changes):
    """Runs of some seeds, trained side by side to their end."""
    small = {"regularizer": "jigsaw", "tasks": 2, "width": 8, "batch": 4, "replay_batch": 4, "buffer": 20, "lr": 0.001}
    settings = make_settings(**small | changes)
    runs = [build_run(settings, seed, data) for seed in range(count)]
    train(runs)
    assert all(run.complete for run in runs)
    return runs


def kept(run):
    """The tensors of a run, without the row of its buffer that takes rejected writes, of which a GPU keeps any."""
    spare = run.method.buffer.capacity
    tensors = run.state().tensors
    rows = {
        name for name, each in tensors.items() if name.startswith("buffer.") and each.dim() and len(each) == spare + 1
    }
    assert rows
    return {name: each[:spare] if name in rows else each for name, each in tensors.items()}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"validate": 0.25, "evaluate_every": 3},
        {"stream": "domain-incremental"},
        {"stream": "blurry", "evaluate_every": 5},
        {"method": "xder"},
        {"classifier": "ncm"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "plain",
)
def test_a_gpu_computes_the_same_bits_wherever_the_images_are(changes, count, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    recorded, record = [], GraphStepper._record
    monkeypatch.setattr(GraphStepper, "_record", lambda self: (record(self), recorded.append(self.graph)))
    data = toys.noise(4, 40, size=16)
    on_device, on_host = data.to("cuda"), data.to("cuda", "host")
    assert on_host.on_host
    ours, theirs = trained(on_device, count, **changes), trained(on_host, count, **changes)
    assert recorded
    assert None not in recorded
    for one, other in zip(ours, theirs, strict=True):
        tensors, same = kept(one), kept(other)
        assert tensors.keys() == same.keys()
        assert [name for name in tensors if not torch.equal(tensors[name], same[name])] == []
        assert (one.accuracy, one.curves) == (other.accuracy, other.curves)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_reads_images_of_the_host_without_keeping_them():
    images = torch.randint(256, (4096, 3, 64, 64), dtype=torch.uint8)
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    before = torch.cuda.memory_allocated()
    seen = host.on_host(images, torch.device("cuda"))
    assert seen.device.type == "cuda"
    assert torch.cuda.memory_allocated() == before
    assert free - torch.cuda.mem_get_info()[0] < images.nbytes // 2
    rows = torch.randperm(len(images), device="cuda")[:100]
    assert torch.equal(seen[rows].cpu(), images[rows.cpu()])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        read = seen[rows]
    rows.copy_(torch.arange(100))
    graph.replay()
    assert torch.equal(read.cpu(), images[:100])
