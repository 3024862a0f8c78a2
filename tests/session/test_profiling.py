"""What is around a profiled step: a larger batch is advised where every turn shows that it would help."""

from __future__ import annotations

import pytest

from outsize.session.profiling import times_as_long


@pytest.mark.parametrize(
    ("turns", "times"),
    [
        ([(100.0, 120.0), (101.0, 121.2), (99.0, 118.8)], 1.2),  # a batch that fills nothing
        ([(100.0, 150.0), (100.0, 250.0), (180.0, 200.0)], 2.5),  # a crowded machine
    ],
)
def test_a_larger_batch_must_help_in_every_turn(turns: list[tuple[float, float]], times: float) -> None:
    assert times_as_long(turns) == pytest.approx(times)
