"""Norms that look across samples or pixels."""

from __future__ import annotations

from torch import nn

from outsize.measure.across import OVER_PIXELS, OVER_SAMPLES, first_norm


def test_norms_are_named_by_what_they_look_across() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.BatchNorm2d(4))
    assert first_norm(model, OVER_SAMPLES) == (
        "2 (BatchNorm2d) and 1 more take means across the parts of a batch"
    )
    assert (first_norm(model, OVER_PIXELS) or "").startswith("1 (GroupNorm) and 2 more")
    assert first_norm(nn.Sequential(nn.Conv2d(1, 1, 1)), OVER_PIXELS) is None
