"""Training steps made up by hand: one of nine operations, and chains of convolution, batch norm and ReLU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outsize.plan.step import Saved, StepFacts, StepOp, Storage

WEIGHT_BYTES = 1 << 20
KIB = 1024


def _chain(num_samples: int, side_px: int, *, num_layers: int = 4, bytes_per_px: int = 64) -> StepFacts:
    """Return a step of `num_layers` layers: per layer a convolution's output and a ReLU's are saved."""
    size = num_samples * side_px**2 * bytes_per_px
    ops: list[StepOp] = []
    lives: list[list[int]] = [[WEIGHT_BYTES, -1, 10**9], [size, -1, 10**9]]  # size, born, dies
    saved: list[Saved] = []

    def op(kind: str, module: str, back: bool, inputs: tuple[int, ...], made: int | None, flops: int) -> int:
        index = len(ops)
        outputs: tuple[int, ...] = (inputs[0],) if made is None else (len(lives),)
        if made is not None:
            lives.append([made, index, 10**9])
        ops.append(StepOp(index, kind, module, 0, back, inputs, outputs, flops, 2 * size, "float32"))
        return outputs[0]

    source, layers = 1, []
    for layer in range(num_layers):
        path = f"block{layer // 2}.layer{layer % 2}"
        conv = op("convolution", f"{path}.conv", False, (source, 0), size, 200 * size)
        saved.append(Saved((f"{path}.conv", 0, 0), source, size, len(ops) - 1))
        norm = op("native_batch_norm", f"{path}.norm", False, (conv, 0), size, 0)
        saved.append(Saved((f"{path}.norm", 0, 0), conv, size, len(ops) - 1))
        op("relu_", f"{path}.relu", False, (norm,), None, 0)
        saved.append(Saved((f"{path}.relu", 0, 0), norm, size, len(ops) - 1))
        layers.append((source, conv, norm))
        source = norm
    gradient = op("ones_like", "", True, (source,), size, 0)
    for source, conv, norm in reversed(layers):
        op("threshold_backward", "", True, (gradient, norm), None, 0)
        lives[norm][2] = len(ops)
        before = op("native_batch_norm_backward", "", True, (gradient, conv, 0), size, 0)
        lives[gradient][2] = lives[conv][2] = len(ops)
        gradient = op("convolution_backward", "", True, (before, source, 0), size, 400 * size)
        lives[before][2] = len(ops)
    num_ops = len(ops)
    storages = tuple(
        Storage(index, num_bytes, born, min(dies, num_ops), "weight" if index == 0 else "activation")
        for index, (num_bytes, born, dies) in enumerate(lives)
    )
    called = [op.module for op in ops if op.module]
    modules = dict.fromkeys(
        part for path in called for part in (path.split(".")[0], path.rpartition(".")[0], path)
    )
    return StepFacts(tuple(ops), storages, tuple(saved), True, tuple(modules))


@pytest.fixture
def chain() -> Callable[..., StepFacts]:
    """The function from samples and side to the facts of a step."""
    return _chain


@pytest.fixture
def small_step() -> StepFacts:
    """Two convolutions with batch norm and ReLU (in place) between: x -> conv -> a -> bn, relu_ -> b -> conv -> c.

    storages: 0 input, 1 weight, 2 a, 3 b, 4 c, 5 grad of c, 6 grad of b, 7 grad of a
    """

    def op(index: int, kind: str, inputs: tuple[int, ...], outputs: tuple[int, ...], back: bool) -> StepOp:
        return StepOp(index, kind, "m", 0, back, inputs, outputs, 0, 0, "float32")

    ops = (
        op(0, "convolution", (0, 1), (2,), False),
        op(1, "native_batch_norm", (2, 1), (3,), False),
        op(2, "relu_", (3,), (3,), False),
        op(3, "convolution", (3, 1), (4,), False),
        op(4, "ones_like", (4,), (5,), True),
        op(5, "convolution_backward", (5, 3, 1), (6,), True),
        op(6, "threshold_backward", (6, 3), (6,), True),
        op(7, "native_batch_norm_backward", (6, 2, 1), (7,), True),
        op(8, "convolution_backward", (7, 0, 1), (), True),
    )
    lives = [(-1, 9), (-1, 9), (0, 8), (1, 7), (3, 6), (4, 6), (5, 8), (7, 9)]
    storages = tuple(
        Storage(index, KIB << (index > 1), born, dies, "weight" if index == 1 else "activation")
        for index, (born, dies) in enumerate(lives)
    )
    saved = (
        Saved(("a", 0, 0), 0, KIB, 0),
        Saved(("bn", 0, 0), 2, 2 * KIB, 1),
        Saved(("relu", 0, 0), 3, 2 * KIB, 2),
        Saved(("b", 0, 0), 3, 2 * KIB, 3),
    )
    return StepFacts(ops, storages, saved, training=True)
