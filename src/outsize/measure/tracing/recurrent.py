"""What recurrent layers keep for backward beyond their results: shapes alone show none of it."""

from __future__ import annotations

from typing import Any

import torch

_PAGE_BYTES, _LINE_BYTES = 4096, 64
_GPU_VALUES = 8  # of each unit at each step: gates, cell, its tanh, what it gives; not measured yet


def with_workspace(kind: str, args: tuple[Any, ...], result: Any, *, on_cuda: bool) -> Any:
    """Return the results of an operation on fakes with the memory that its kernel hands to backward.

    An LSTM is followed as oneDNN's, for a GPU too: cuDNN's cannot be followed without one.
    """
    if kind != "mkldnn_rnn_layer" or not args[15]:  # in training
        return result
    *others, workspace = result
    num_steps, num_samples, num_inputs = args[0].shape  # time first: torch turns it round before
    num_units, value_bytes = args[10], args[0].element_size()
    if on_cuda:
        num_bytes = _GPU_VALUES * num_steps * num_samples * num_units * value_bytes
    else:
        num_bytes = onednn_bytes(num_steps, num_samples, num_inputs, num_units, value_bytes)
    return (*others, workspace.new_empty(num_bytes, dtype=torch.uint8))


def onednn_bytes(num_steps: int, num_samples: int, num_inputs: int, num_units: int, value_bytes: int) -> int:
    """Return the workspace of one LSTM layer of oneDNN, in one direction.

    Gates, hidden values, cells and the gradients of the last two, for all steps and one before the first: each begins
    at a page, and its rows at cache lines, but not at multiples of 256 values, which would all fall on the same ones.
    """
    rows = 2 * (num_steps + 1) * num_samples
    widest = max(num_inputs, num_units)
    parts = (
        num_steps * num_samples * _row(4 * num_units, value_bytes) * value_bytes,
        num_steps * num_samples * _row(num_units, value_bytes) * value_bytes,
        rows * _row(widest, value_bytes) * value_bytes,
        rows * _row(widest, value_bytes) * value_bytes,
        rows * _row(widest, 4) * 4,
        rows * num_units * 4,
        rows * num_units * 4,
    )
    return sum(-(-each // _PAGE_BYTES) * _PAGE_BYTES for each in parts)


def _row(num_values: int, value_bytes: int) -> int:
    """Return the values from one row to the next."""
    step = _LINE_BYTES // value_bytes
    row = -(-num_values // step) * step
    return row + step if row % 256 == 0 else row
