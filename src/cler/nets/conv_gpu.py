"""Convolutions between few channels as Triton kernels, for channels-last maps in bfloat16 on a GPU.

cuDNN's kernels are made for many channels, and maps whose channels are not a multiple of eight are first copied to
where they are: between 20 channels it takes three times as long as what is done here.

A map is seen as rows (pixels of all images) × channels. Taps in a row of the kernel are neighbors, and so are their
channels in memory: what one row of the kernel sees of a map around a pixel is one piece of memory, TAPS · channels
long. With these pieces as its rows, a convolution is a matrix product for each row of the kernel. So is its gradient by
the map, and that by the weights, which is summed up in chunks of pixels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64
"""Pixels that a program takes at a time."""
WARPS = 4
"""Warps of 32 threads in a program."""
CHUNKS = 96
"""Parts in which the gradient by the weights is summed up."""


@triton.jit
def _seen(
    x, at, there, kernel_row, SPAN: tl.constexpr, INPUTS: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """What a row of the kernel sees around each output pixel: (pixels, SPAN), of which TAPS · INPUTS are values."""
    column = (at % OUT_WIDTH) * STRIDE - TAPS // 2
    row = (at // OUT_WIDTH % OUT_HEIGHT) * STRIDE - TAPS // 2 + kernel_row
    image = at // (OUT_WIDTH * OUT_HEIGHT)
    span = tl.arange(0, SPAN)
    columns = column[:, None] + (span // INPUTS)[None, :]
    inside = (columns >= 0) & (columns < WIDTH) & (span < TAPS * INPUTS)[None, :]
    inside = inside & (there & (row >= 0) & (row < HEIGHT))[:, None]
    first = ((image * HEIGHT + row) * WIDTH + column) * INPUTS
    return tl.load(x + first[:, None] + span[None, :], inside, 0.0)


@triton.jit
def _convolve(
    x, weight, out, pixels, TURNED: tl.constexpr,
    ROWS: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """A convolution; TURNED, by a kernel turned by half, with inputs and outputs exchanged."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = at < pixels
    span = tl.arange(0, SPAN)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    needed = (span < TAPS * INPUTS) & (column < OUTPUTS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for kernel_row in tl.static_range(TAPS):
        values = _seen(x, at, there, kernel_row, SPAN, INPUTS, TAPS, STRIDE, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH)
        if TURNED:
            tap = (TAPS - 1 - kernel_row) * TAPS + TAPS - 1 - span // INPUTS
            place = (span % INPUTS * TAPS * TAPS + tap) * OUTPUTS + column
        else:
            place = (column * TAPS + kernel_row) * TAPS * INPUTS + span
        total = tl.dot(values, tl.load(weight + place, needed, 0.0), total)
    mask = there[:, None] & (column < OUTPUTS)
    tl.store(out + at[:, None] * OUTPUTS + column, total.to(out.dtype.element_ty), mask)


@triton.jit
def _spread(
    gradient, weight, to_x, places,
    ROWS: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient by the map where the stride is 2: of the pixels in even or odd rows and columns, as axis 1 says.

    Such a pixel meets at most two rows and two columns of the output; the channels of the two are neighbors in memory.
    """
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    odd_row, odd_column = tl.program_id(1) // 2, tl.program_id(1) % 2
    out_column, out_row, image = at % OUT_WIDTH, at // OUT_WIDTH % OUT_HEIGHT, at // (OUT_WIDTH * OUT_HEIGHT)
    row, column = STRIDE * out_row + odd_row, STRIDE * out_column + odd_column
    there = (at < places) & (row < HEIGHT) & (column < WIDTH)
    span = tl.arange(0, SPAN)
    right = span // OUTPUTS
    kernel_column = TAPS // 2 + odd_column - STRIDE * right
    used = (kernel_column >= 0) & (kernel_column < TAPS)
    inside = there[:, None] & used[None, :] & (out_column[:, None] + right[None, :] < OUT_WIDTH)
    channel = tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for below in tl.static_range(2):
        kernel_row = TAPS // 2 + odd_row - STRIDE * below
        if (kernel_row >= 0) & (kernel_row < TAPS):
            first = ((image * OUT_HEIGHT + out_row + below) * OUT_WIDTH + out_column) * OUTPUTS
            mask = inside & (out_row + below < OUT_HEIGHT)[:, None]
            slope = tl.load(gradient + first[:, None] + span[None, :], mask, 0.0)
            place = ((span % OUTPUTS * TAPS + kernel_row) * TAPS + kernel_column) * INPUTS
            needed = used[:, None] & (channel < INPUTS)[None, :]
            total = tl.dot(slope, tl.load(weight + place[:, None] + channel[None, :], needed, 0.0), total)
    place = ((image * HEIGHT + row) * WIDTH + column) * INPUTS
    mask = there[:, None] & (channel < INPUTS)[None, :]
    tl.store(to_x + place[:, None] + channel[None, :], total.to(to_x.dtype.element_ty), mask)


@triton.jit
def _correlate(
    x, gradient, partial, pixels, chunk,
    ROWS: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient by the weights of a row of the kernel, of a chunk of the pixels."""
    number, kernel_row = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, COLUMNS)[None, :]
    span = tl.arange(0, SPAN)[:, None]
    total = tl.zeros([SPAN, COLUMNS], tl.float32)
    last = tl.minimum((number + 1) * chunk, pixels)
    for start in range(number * chunk, last, ROWS):
        at = start + tl.arange(0, ROWS)
        there = at < last
        slope = tl.load(gradient + at[:, None] * OUTPUTS + column, there[:, None] & (column < OUTPUTS), 0.0)
        values = _seen(x, at, there, kernel_row, SPAN, INPUTS, TAPS, STRIDE, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH)
        total = tl.dot(tl.trans(values), slope, total)
    place = ((number * OUTPUTS + column) * TAPS + kernel_row) * TAPS * INPUTS + span
    tl.store(partial + place, total, (span < TAPS * INPUTS) & (column < OUTPUTS))


@triton.jit
def _add_up(partial, out, size, chunks, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum over all chunks."""
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    chunk = tl.arange(0, CHUNKS)
    mask = (chunk < chunks)[:, None] & (at < size)[None, :]
    total = tl.sum(tl.load(partial + chunk[:, None] * size + at[None, :], mask, 0.0), 0)
    tl.store(out + at, total.to(out.dtype.element_ty), at < size)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        x, weight = (each.contiguous(memory_format=torch.channels_last) for each in (x, weight))
        (images, inputs, *size), (outputs, _, taps, _) = x.shape, weight.shape
        shape = images, outputs, *((side - 1) // stride + 1 for side in size)
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        pixels = out.numel() // outputs
        _convolve[(triton.cdiv(pixels, ROWS),)](
            x, weight, out, pixels, TURNED=False, **_tile(taps * inputs, outputs), **_sizes(x, weight, out, stride)
        )
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        to_x = _by_map(gradient, x, weight, ctx.stride) if ctx.needs_input_grad[0] else None
        to_weight = _by_weight(gradient, x, weight, ctx.stride) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, None


def _by_map(gradient: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    outputs, inputs, taps, _ = weight.shape
    to_x, sizes = torch.empty_like(x), _sizes(x, weight, gradient, stride)
    pixels = gradient.numel() // outputs
    blocks = triton.cdiv(pixels, ROWS)
    if stride == 1:
        sizes |= {"INPUTS": outputs, "OUTPUTS": inputs}
        _convolve[(blocks,)](gradient, weight, to_x, pixels, TURNED=True, **_tile(taps * outputs, inputs), **sizes)
    else:
        _spread[(blocks, 4)](gradient, weight, to_x, pixels, **_tile(2 * outputs, inputs), **sizes)
    return to_x


def _by_weight(gradient: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    outputs, inputs, taps, _ = weight.shape
    pixels, size = gradient.numel() // outputs, weight.numel()
    chunk = triton.cdiv(triton.cdiv(pixels, CHUNKS), ROWS) * ROWS
    chunks = triton.cdiv(pixels, chunk)
    partial, to_weight = torch.empty(chunks, size, device=x.device), torch.empty_like(weight)
    constants = _tile(taps * inputs, outputs) | _sizes(x, weight, gradient, stride)
    _correlate[(chunks, taps)](x, gradient, partial, pixels, chunk, **constants)
    columns = 64
    _add_up[(triton.cdiv(size, columns),)](
        partial, to_weight, size, chunks, CHUNKS=triton.next_power_of_2(chunks), COLUMNS=columns, num_warps=WARPS
    )
    return to_weight


def _tile(span: int, columns: int) -> dict[str, int]:
    """What a program holds: sides are powers of two that a matrix product takes."""
    sides = {"SPAN": span, "COLUMNS": columns}
    return {name: max(16, triton.next_power_of_2(side)) for name, side in sides.items()} | {
        "ROWS": ROWS,
        "num_warps": WARPS,
    }


def _sizes(x: Tensor, weight: Tensor, out: Tensor, stride: int) -> dict[str, int]:
    """What kernels are compiled for: with sizes that are known, division by them is cheap."""
    (outputs, inputs, taps, _), (height, width), (out_height, out_width) = weight.shape, x.shape[2:], out.shape[2:]
    return {
        "INPUTS": inputs, "OUTPUTS": outputs, "TAPS": taps, "STRIDE": stride,
        "HEIGHT": height, "WIDTH": width, "OUT_HEIGHT": out_height, "OUT_WIDTH": out_width,
    }  # fmt: skip


def convolve(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """A convolution by a kernel of 1×1 or 3×3, whose middle meets every pixel, or every second in both directions."""
    return _Convolution.apply(x, weight, stride)
