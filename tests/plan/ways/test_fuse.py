"""Which layers are fused: a ReLU goes with a norm only if nobody else sees what the norm made."""

from __future__ import annotations

import pytest

from outsize.plan.plan import Fuse
from outsize.plan.step import StepFacts, StepOp
from outsize.plan.ways.fuse import find_fusible


def _facts(*ops: tuple[str, str, tuple[int, ...], tuple[int, ...]]) -> StepFacts:
    """Return a forward of operations by kind, module, what they read and what they make."""
    listed = tuple(
        StepOp(index, kind, module, 0, False, inputs, outputs, 0, 1, "float32")
        for index, (kind, module, inputs, outputs) in enumerate(ops)
    )
    return StepFacts(listed, (), (), training=True)


NORM = ("native_batch_norm", "norm", (0,), (1,))


@pytest.mark.parametrize(
    ("others", "with_relu"),
    [
        ([("relu_", "relu", (1,), (1,)), ("convolution", "next", (1,), (2,))], True),
        ([("relu", "relu", (1,), (2,))], True),
        ([("relu", "relu", (1,), (2,)), ("add", "", (1, 2), (3,))], False),
        ([("add", "", (0, 1), (1,)), ("relu_", "relu", (1,), (1,))], False),
        ([("relu", "", (1,), (2,))], False),  # no module
        ([], False),
    ],
)
def test_a_norm_and_its_relu(
    others: list[tuple[str, str, tuple[int, ...], tuple[int, ...]]], with_relu: bool
) -> None:
    found = find_fusible(_facts(NORM, *others), {"norm"}, {"relu"})
    assert found == (Fuse(norms_with_relu=("norm",)) if with_relu else Fuse(norms=("norm",)))


def test_only_layers_that_can_be() -> None:
    facts = _facts(
        NORM,
        ("max_pool2d_with_indices", "pool", (1,), (2, 3)),
        ("cat", "merge", (1, 2), (4,)),
        ("convolution", "merge", (4,), (5,)),
        ("convolution", "tall", (5,), (6,)),
        ("convolution", "square", (6,), (7,)),
        ("upsample_bilinear2d", "up", (7,), (8,)),
    )
    found = find_fusible(facts, {"pool", "merge", "tall", "up"}, set())
    assert found == Fuse(pools=("pool",), joins=("merge",), columns=("tall",), enlargings=("up",))
