"""A GPU that others use is told from one that is ours by how evenly it works."""

from __future__ import annotations

import pytest
import torch

from outsize.measure import shared

_ALONE = [0.11e-3] * 90 + [0.13e-3] * 10  # clocks go up and down
_ASLEEP = [0.2e-3] * 20 + [0.11e-3] * 80  # it wakes up first


@pytest.mark.parametrize(
    ("waits_s", "found"),
    [
        (_ALONE, False),
        (_ASLEEP, False),
        ([*_ALONE, *_ALONE, 2e-3], False),  # one hiccup
        ([*_ALONE[:18], 0.002, *_ALONE[:18], 0.002], True),  # every other turn is another's
        (([0.11e-3] * 18 + [6e-3]) * 3, True),  # one in four is ours
    ],
)
def test_interruptions_are_seen(waits_s: list[float], found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_waits_s", lambda _: waits_s)
    assert shared.is_shared(torch.device("cuda", 0)) == found


def test_a_cpu_is_not_looked_at() -> None:
    assert not shared.is_shared(torch.device("cpu"))
