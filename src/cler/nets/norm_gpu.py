"""Batch norm + residual + ReLU as two Triton kernels each way, for channels-last maps on a GPU.

At batches of ten a GPU spends its time on launches, not on arithmetic: PyTorch takes about ten kernels for what is done
here in four, and one more set for each part that is to be normalized by itself.

A map is seen as rows (pixels of all images) × channels. A *plan* cuts the rows into chunks, none of which crosses the
border of a part. The first kernel reduces each chunk, the second one merges the chunks of its part and applies them.

Evaluation, where the statistics are given, takes one kernel.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cler.nets.backbone import Parts

TILE = 4096
"""Values that a program holds at a time; twice as many in long chunks, to have more of the memory on its way."""
MOST_CHUNKS = 64
"""Chunks that a part is cut into at the most."""
LONG = 256
"""Rows from which a chunk is long; such chunks have a multiple of it."""
MOST_COLUMNS = 32
"""Channels that a program looks at; twice as many where it has nothing to sum up."""
WARPS = 4
"""Warps of 32 threads in a program; twice as many for long chunks."""


class Plan(NamedTuple):
    """How the rows of a batch are cut."""

    chunks: Tensor
    """(chunks, 3): first row, row after the last, part."""
    parts: Tensor
    """(parts, 3): first chunk, number of chunks, number of rows."""
    n_chunks: int
    n_parts: int
    longest: int
    """Rows of the longest chunk."""
    span: int
    """A power of two no smaller than the chunks of any part."""


@cache  # for ever: a recorded step reads from where they are
def make_plan(sizes: tuple[int, ...], pixels: int, device: torch.device) -> Plan:
    """The plan for parts of so many images of so many pixels."""
    needed = triton.cdiv(max(sizes) * pixels, MOST_CHUNKS)
    length = max(64, triton.next_power_of_2(needed)) if needed <= LONG else LONG * triton.cdiv(needed, LONG)
    chunks: list[tuple[int, int, int]] = []
    parts: list[tuple[int, int, int]] = []
    start = 0
    for part, size in enumerate(sizes):
        end = start + size * pixels
        cuts = [*range(start, end, length), end]
        parts.append((len(chunks), len(cuts) - 1, end - start))
        chunks += [(first, last, part) for first, last in itertools.pairwise(cuts)]
        start = end
    return Plan(
        torch.tensor(chunks, dtype=torch.int32, device=device),
        torch.tensor(parts, dtype=torch.int32, device=device),
        len(chunks),
        len(parts),
        length,
        triton.next_power_of_2(max(count for _, count, _ in parts)),
    )


@triton.jit
def _reduce(x, chunks, partial, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Mean and sum of squared deviations of each chunk, which are summed up as differences from its first row.

    Without that, deviations that are small beside the mean would be lost.
    """
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < CHANNELS
    first = tl.load(chunks + 3 * chunk)
    last = tl.load(chunks + 3 * chunk + 1)
    origin = tl.load(x + first * CHANNELS + columns, inside, 0.0).to(tl.float32)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < last)[:, None] & inside[None, :]
        values = tl.load(x + rows[:, None] * CHANNELS + columns[None, :], mask, 0.0).to(tl.float32)
        away = tl.where(mask, values - origin[None, :], 0.0)
        sums += away
        squares += away * away
    total = tl.sum(sums, 0)
    mean = total / (last - first).to(tl.float32)
    tl.store(partial + chunk * 2 * CHANNELS + columns, origin + mean, inside)
    tl.store(partial + chunk * 2 * CHANNELS + CHANNELS + columns, tl.sum(squares, 0) - total * mean, inside)


@triton.jit
def _merge(chunks, parts, partial, part, columns, CHANNELS: tl.constexpr, SPAN: tl.constexpr):
    """Mean, sum of squared deviations and row count of a whole part."""
    first = tl.load(parts + 3 * part)
    rows = tl.load(parts + 3 * part + 2).to(tl.float32)
    offset = tl.arange(0, SPAN)
    there = offset < tl.load(parts + 3 * part + 1)
    begin = tl.load(chunks + 3 * (first + offset), there, 0)
    counts = (tl.load(chunks + 3 * (first + offset) + 1, there, 0) - begin).to(tl.float32)
    mask = there[:, None] & (columns < CHANNELS)[None, :]
    at = partial + (first + offset)[:, None] * 2 * CHANNELS + columns[None, :]
    means = tl.load(at, mask, 0.0)
    squares = tl.load(at + CHANNELS, mask, 0.0)
    mean = tl.sum(means * counts[:, None], 0) / rows
    away = means - mean[None, :]
    return mean, tl.sum(squares + counts[:, None] * away * away, 0), rows


@triton.jit(do_not_specialize=["tracked"])
def _normalize(
    x, residual, out, chunks, parts, partial, weight, bias, running_mean, running_var, saved, tracked, momentum, eps,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Apply the statistics of each chunk's part; note them for the way back; move the running ones by `tracked` parts.

    How many parts are tracked is not known to the compiler, or it would compile the same again for the first task.
    """
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < CHANNELS
    first = tl.load(chunks + 3 * chunk)
    last = tl.load(chunks + 3 * chunk + 1)
    part = tl.load(chunks + 3 * chunk + 2)
    mean, squares, count = _merge(chunks, parts, partial, part, columns, CHANNELS, SPAN)
    scale = 1.0 / tl.sqrt(squares / count + eps)
    if chunk == tl.load(parts + 3 * part):
        tl.store(saved + part * 2 * CHANNELS + columns, mean, inside)
        tl.store(saved + part * 2 * CHANNELS + CHANNELS + columns, scale, inside)
    if (chunk == 0) & (tracked > 0):
        kept_mean = tl.load(running_mean + columns, inside, 0.0)
        kept_var = tl.load(running_var + columns, inside, 0.0)
        for each in range(tracked):
            new_mean, new_squares, new_count = _merge(chunks, parts, partial, each, columns, CHANNELS, SPAN)
            kept_mean += momentum * (new_mean - kept_mean)
            kept_var += momentum * (new_squares / (new_count - 1) - kept_var)
        tl.store(running_mean + columns, kept_mean, inside)
        tl.store(running_var + columns, kept_var, inside)
    gain = tl.load(weight + columns, inside, 0.0) * scale
    shift = tl.load(bias + columns, inside, 0.0) - mean * gain
    for start in range(first, last, ROWS):
        _scale_rows(x, residual, out, start, last, columns, gain, shift, CHANNELS, ROWS, RESIDUAL, RELU)


@triton.jit
def _scale_rows(
    x, residual, out, start, last, columns, gain, shift,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Write a tile of rows: scaled, shifted, added to, rectified. A NaN stays one, for a run that fails to be seen."""
    rows = start + tl.arange(0, ROWS)
    mask = (rows < last)[:, None] & (columns < CHANNELS)[None, :]
    at = rows[:, None] * CHANNELS + columns[None, :]
    value = tl.load(x + at, mask, 0.0).to(tl.float32) * gain[None, :] + shift[None, :]
    if RESIDUAL:
        value += tl.load(residual + at, mask, 0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0, 0.0, value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask)


@triton.jit
def _apply(
    x, residual, out, weight, bias, mean, variance, rows, eps,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Normalize a tile by statistics that are given."""
    start = tl.program_id(0).to(tl.int64) * ROWS  # a large batch of large maps has more values than 32 bits count
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < CHANNELS
    gain = tl.load(weight + columns, inside, 0.0) / tl.sqrt(tl.load(variance + columns, inside, 1.0) + eps)
    shift = tl.load(bias + columns, inside, 0.0) - tl.load(mean + columns, inside, 0.0) * gain
    _scale_rows(x, residual, out, start, rows, columns, gain, shift, CHANNELS, ROWS, RESIDUAL, RELU)


@triton.jit
def _reduce_gradient(
    gradient, x, out, chunks, saved, partial, weight, bias, to_residual,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Sums over each chunk of the gradient, and of the gradient times the normalized input.

    The gradient is that before ReLU. With a residual it is written down, as the residual's.
    """
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < CHANNELS
    first = tl.load(chunks + 3 * chunk)
    last = tl.load(chunks + 3 * chunk + 1)
    part = tl.load(chunks + 3 * chunk + 2)
    mean = tl.load(saved + part * 2 * CHANNELS + columns, inside, 0.0)
    scale = tl.load(saved + part * 2 * CHANNELS + CHANNELS + columns, inside, 0.0)
    gain = tl.load(weight + columns, inside, 0.0) * scale
    shift = tl.load(bias + columns, inside, 0.0) - mean * gain
    plain = tl.zeros([COLUMNS], tl.float32)
    along = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < last)[:, None] & inside[None, :]
        at = rows[:, None] * CHANNELS + columns[None, :]
        slope = tl.load(gradient + at, mask, 0.0).to(tl.float32)
        value = tl.load(x + at, mask, 0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                slope = tl.where(tl.load(out + at, mask, 0.0) <= 0, 0.0, slope)
                tl.store(to_residual + at, slope.to(to_residual.dtype.element_ty), mask)
            else:
                slope = tl.where(value * gain[None, :] + shift[None, :] <= 0, 0.0, slope)
        plain += tl.sum(slope, 0)
        along += tl.sum(slope * (value - mean[None, :]) * scale[None, :], 0)
    tl.store(partial + chunk * 2 * CHANNELS + columns, plain, inside)
    tl.store(partial + chunk * 2 * CHANNELS + CHANNELS + columns, along, inside)


@triton.jit
def _add_up(parts, partial, part, columns, CHANNELS: tl.constexpr, SPAN: tl.constexpr):
    """The two sums over a whole part, and its row count."""
    first = tl.load(parts + 3 * part)
    offset = tl.arange(0, SPAN)
    there = offset < tl.load(parts + 3 * part + 1)
    mask = there[:, None] & (columns < CHANNELS)[None, :]
    at = partial + (first + offset)[:, None] * 2 * CHANNELS + columns[None, :]
    plain = tl.sum(tl.load(at, mask, 0.0), 0)
    along = tl.sum(tl.load(at + CHANNELS, mask, 0.0), 0)
    return plain, along, tl.load(parts + 3 * part + 2).to(tl.float32)


@triton.jit(do_not_specialize=["n_parts"])
def _propagate(
    gradient, x, chunks, parts, saved, partial, weight, bias, to_x, to_weight, to_bias, n_parts,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Gradients of input, weight and bias; with RELU from the gradient after it, where there is no residual."""
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < CHANNELS
    first = tl.load(chunks + 3 * chunk)
    last = tl.load(chunks + 3 * chunk + 1)
    part = tl.load(chunks + 3 * chunk + 2)
    mean = tl.load(saved + part * 2 * CHANNELS + columns, inside, 0.0)
    scale = tl.load(saved + part * 2 * CHANNELS + CHANNELS + columns, inside, 0.0)
    plain, along, count = _add_up(parts, partial, part, columns, CHANNELS, SPAN)
    if chunk == 0:
        all_plain = tl.zeros([COLUMNS], tl.float32)
        all_along = tl.zeros([COLUMNS], tl.float32)
        for each in range(n_parts):
            each_plain, each_along, _ = _add_up(parts, partial, each, columns, CHANNELS, SPAN)
            all_plain += each_plain
            all_along += each_along
        tl.store(to_weight + columns, all_along, inside)
        tl.store(to_bias + columns, all_plain, inside)
    gain = tl.load(weight + columns, inside, 0.0) * scale
    shift = tl.load(bias + columns, inside, 0.0) - mean * gain
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < last)[:, None] & inside[None, :]
        at = rows[:, None] * CHANNELS + columns[None, :]
        slope = tl.load(gradient + at, mask, 0.0).to(tl.float32)
        value = tl.load(x + at, mask, 0.0).to(tl.float32)
        if RELU:
            slope = tl.where(value * gain[None, :] + shift[None, :] <= 0, 0.0, slope)
        normalized = (value - mean[None, :]) * scale[None, :]
        slope -= plain[None, :] / count + normalized * (along[None, :] / count)
        tl.store(to_x + at, (slope * gain[None, :]).to(to_x.dtype.element_ty), mask)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor,
        running_mean: Tensor | None, running_var: Tensor | None,
        sizes: tuple[int, ...], tracked: int, relu: bool, momentum: float, eps: float,
    ) -> Tensor:  # fmt: skip
        _, channels, height, width = x.shape
        x, residual = _as_rows(x, residual)
        plan = make_plan(sizes, height * width, x.device)
        grid, shape = _launch(plan, channels)
        out = torch.empty_like(x)
        partial = torch.empty(plan.n_chunks, 2, channels, device=x.device)
        saved = torch.empty(plan.n_parts, 2, channels, device=x.device)
        _reduce[grid](x, plan.chunks, partial, **shape)
        _normalize[grid](
            x, x if residual is None else residual, out, plan.chunks, plan.parts, partial, weight, bias,
            weight if running_mean is None else running_mean, weight if running_var is None else running_var,
            saved, 0 if running_mean is None else tracked, momentum, eps,
            **shape, SPAN=plan.span, RESIDUAL=residual is not None, RELU=relu,
        )  # fmt: skip
        ctx.plan, ctx.relu, ctx.residual = plan, relu, residual is not None
        rectified = relu and residual is not None  # else x tells where ReLU let something through
        ctx.save_for_backward(x, out if rectified else x, weight, bias, saved)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, out, weight, bias, saved = ctx.saved_tensors
        plan, channels, relu, residual = ctx.plan, x.shape[1], ctx.relu, ctx.residual
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        grid, shape = _launch(plan, channels)
        partial = torch.empty(plan.n_chunks, 2, channels, device=x.device)
        to_x, to_weight, to_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        # without ReLU the gradient passes to the residual as it is
        to_residual = torch.empty_like(x) if residual and relu else gradient
        _reduce_gradient[grid](
            gradient, x, out, plan.chunks, saved, partial, weight, bias, to_residual,
            **shape, RESIDUAL=residual, RELU=relu,
        )  # fmt: skip
        _propagate[grid](
            to_residual, x, plan.chunks, plan.parts, saved, partial, weight, bias, to_x, to_weight, to_bias,
            plan.n_parts, **shape, SPAN=plan.span, RELU=relu and not residual,
        )  # fmt: skip
        return to_x, to_residual if residual else None, to_weight, to_bias, *[None] * 7


def _as_rows(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both in one type, and laid out as rows of channels."""
    if residual is not None:
        residual = residual.to(x.dtype).contiguous(memory_format=torch.channels_last)
    return x.contiguous(memory_format=torch.channels_last), residual


def _tile(channels: int, most_columns: int, fold: int = 1) -> dict[str, int]:
    columns = min(most_columns, triton.next_power_of_2(channels))
    return {"CHANNELS": channels, "ROWS": fold * TILE // columns, "COLUMNS": columns, "num_warps": fold * WARPS}


def _launch(plan: Plan, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    shape = _tile(channels, MOST_COLUMNS, 2 if plan.longest > LONG else 1)
    return (plan.n_chunks, triton.cdiv(channels, shape["COLUMNS"])), shape


def batch_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor] | None,
    *,
    parts: Parts | None,
    relu: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalize each part by its own statistics, add the residual, rectify; `running` statistics are updated."""
    sizes, silent = parts or ((len(x),), 0)
    mean, variance = running or (None, None)
    tracked = len(sizes) - silent
    return _BatchNorm.apply(x, residual, weight, bias, mean, variance, sizes, tracked, relu, momentum, eps)


def apply_statistics(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor],
    *,
    relu: bool,
    eps: float,
) -> Tensor:
    """Normalize by `running` statistics, add the residual, rectify, in one kernel; no gradient comes back."""
    batch, channels, height, width = x.shape
    x, residual = _as_rows(x, residual)
    out, shape, rows = torch.empty_like(x), _tile(channels, 2 * MOST_COLUMNS), batch * height * width
    grid = triton.cdiv(rows, shape["ROWS"]), triton.cdiv(channels, shape["COLUMNS"])
    _apply[grid](
        x, x if residual is None else residual, out, weight, bias, *running, rows, eps,
        **shape, RESIDUAL=residual is not None, RELU=relu,
    )  # fmt: skip
    return out
