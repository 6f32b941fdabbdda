"""What a learner knows at one moment: from pixels to probabilities."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cler.methods import Method


class Classifier(nn.Module):
    """Probabilities (N, columns) of some classes of a method, by their numbers, from uint8 images (N, C, H, W)."""

    columns: Tensor

    def __init__(self, method: Method, columns: Sequence[int]) -> None:
        super().__init__()
        self.network = method.network
        self._method = (method,)
        self.register_buffer("columns", torch.tensor(columns, device=method.setup.device))

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalize, score, and share out the probability among the classes."""
        (method,) = self._method
        torch.ops.aten._assert_tensor_metadata(pixels, dtype=torch.uint8)  # in a program, too: 0 to 1 would look black
        logits = method.logits(method.views.plain(pixels)).index_select(1, self.columns)
        return (logits / method.temperature).softmax(1)

    def standalone(self) -> Classifier:
        """A copy with a network of its own, in evaluation and laid out as other programs expect it."""
        method = copy.copy(self._method[0])
        method.network, method.teacher = copy.deepcopy(method.answerer).eval().requires_grad_(False), None
        method.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return Classifier(method, self.columns.tolist())
