"""Figures that were measured several times."""

from __future__ import annotations

import pytest

from outsize.measurement import Figure, Fingerprint, MeasuredJob


def test_the_spread_is_how_far_the_farthest_is() -> None:
    found = Figure.of([9.0, 10.0, 12.0])
    assert found == Figure(10.0, pytest.approx(0.2), 3)
    assert Figure.of([7.0]) == Figure(7.0, 0.0, 1)
    assert Figure.of([0.0, 0.0]).spread == 0.0
    assert found.as_dict() == {"median": 10.0, "spread": pytest.approx(0.2), "repeats": 3}


def test_two_agree_where_they_overlap() -> None:
    one = Figure(10.0, 0.1, 5)
    assert one.agrees_with(Figure(11.5, 0.05, 5))
    assert not one.agrees_with(Figure(12.0, 0.05, 5))
    assert Figure(12.0, 0.05, 5).agrees_with(one) is False


def test_names() -> None:
    assert Fingerprint("cuda:0", "a CPU", 4, 1, gpu="a GPU").name == "a GPU"
    assert Fingerprint("cpu", "a CPU", 4, 1).name == "a CPU"
    assert MeasuredJob("unet", 4, (64, 96), "fp32").text == "unet, 4 x 64 x 96 px, fp32"
