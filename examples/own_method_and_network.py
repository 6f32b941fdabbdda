"""Your own method and network: replay with stored logits, on a small CNN, trained with and without CLER."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

import cler


@dataclass(frozen=True)
class Options:
    alpha: float = cler.setting(0.3, "Weight of the squared distance to the stored logits.", least=0)


class DarkReplay(cler.Method):
    """L = CE(stream) + CE(replay) + alpha · MSE(replay, logits stored when the image was seen)."""

    name = "dark-replay"
    replays, Options = True, Options

    def make_buffer(self):
        return self.make_reservoir(logits=(self.n_classes,))  # what it stores beside image and label

    def observe(self, batch):
        replay = self.buffer.sample(self.setup.replay_batch)  # empty until the first batch is stored
        pixels, labels = torch.cat([batch.pixels, replay.pixels]), torch.cat([batch.labels, replay.labels])
        images = torch.cat([batch.images, self.views.augmented(replay.pixels)])
        (logits,), penalties = self.outputs(images, pixels=pixels, labels=labels)  # penalties: from the regularizers
        new, old = logits.split([len(batch.labels), len(replay.labels)])
        terms = {"stream": F.cross_entropy(new, batch.labels), **penalties}
        if len(old):
            terms["replay"] = F.cross_entropy(old, replay.labels)
            terms["logits"] = self.options.alpha * F.mse_loss(old, replay.extra["logits"])
        self.descend(terms)
        self.buffer.add(batch.pixels, batch.labels, logits=new.detach())
        return terms


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def small_network(n_classes: int) -> cler.Backbone:
    late = nn.Sequential(block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers = {"early": nn.Sequential(block(3, 8), block(8, 16)), "late": late, "classifier": nn.Linear(32, n_classes)}
    module = nn.Sequential(OrderedDict(layers))
    return cler.backbone(module, tap="early", head="late.0", classifier="classifier")


images = replace(cler.data.load("cifar10-sample"), name="my-images")  # stands for your own dataset
settings = {"dataset": images, "network": small_network, "buffer": 200, "batch": 20, "alpha": 0.5, "seeds": 2}
alone = cler.train(DarkReplay, **settings)
with_cler = cler.train(DarkReplay, regularizer="jigsaw", weight=0.5, **settings)
print(cler.compare(alone, with_cler))
