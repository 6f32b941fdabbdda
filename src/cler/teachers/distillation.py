"""How one network's outputs are taught to another."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def distillation(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KD(teacher → student) = τ² · mean_n KL(softmax(t_n/τ) ‖ softmax(s_n/τ)) of logits (N, C); only s is moved."""
    known, learned = (F.log_softmax(each / temperature, dim=1) for each in (teacher.detach(), student))
    return temperature**2 * F.kl_div(learned, known, reduction="batchmean", log_target=True)
