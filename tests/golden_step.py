"""ER-ACE as it stands before the golden step, with which those of regularizers begin."""

import torch

from cler.methods import Setup
from cler.methods.er_ace import ErAce
from cler.streams import Tasks


def marked(classes, count):
    """A mask of so many classes, true at these."""
    return torch.zeros(count, dtype=torch.bool).index_fill(0, classes, True)


def er_ace_before(step, network, views, regularizers):
    """The method on this network, its buffer filled and every draw replaced by the stored one."""
    capacity, n_classes = len(step["buffer_labels"]), len(network.classifier.bias)
    method = ErAce(
        Setup(
            network=network,
            views=views,
            tasks=Tasks.of_sizes([1] * n_classes),
            image_shape=tuple(step["buffer_images"].shape[1:]),
            regularizers=regularizers,
            lr=float(step["lr"]),
            buffer=capacity,
            replay_batch=len(step["replay_indices"]),
        )
    )
    method.seen.copy_(marked(step["seen_before"], n_classes))
    method.buffer.pixels[:capacity] = step["buffer_images"]
    method.buffer.labels[:capacity] = step["buffer_labels"]
    method.buffer.offered.fill_(int(step["offered_before"]))
    method.buffer.filled = capacity
    method.buffer.draw_slots = lambda count: step["replay_indices"]
    method.buffer.draw_positions = lambda count: step["reservoir_draws"]
    method.begin_task(int(step["task"]))
    return method
