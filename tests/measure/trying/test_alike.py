"""A model does the same at the sizes and numbers of samples that it will be given, or the operation is named."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.measure.nets import BANDS, Net, conv

from outsize.measure.trying import derive, differing_at, does_the_same
from outsize.measure.trying.alike import OTHER_GIVEN
from outsize.tiles.sizes import OTHER_OPERATIONS

WINDOW, WHOLE = (640, 640), (1800, 1400)


def _found(function: object, number: int = 8, left: int = 5, **modules: torch.nn.Module) -> str | None:
    model = Net(function, **modules).eval()  # type: ignore[arg-type]
    assert derive(model, BANDS, (2304, 2304)).exact  # from sizes beyond all bands
    shapes = [(number, BANDS, *WINDOW), (left, BANDS, *WINDOW), (1, BANDS, *WHOLE)]
    found = differing_at(model, shapes, 1)
    return found and found.reason


@pytest.mark.parametrize(
    ("low", "high"), [(600, 2000), (600, 1000), (1300, 1500)], ids=["both", "window", "whole"]
)
def test_a_band_of_sizes_is_found_wherever_it_lies(low: int, high: int) -> None:
    assert _found(lambda _, x: x + (x[:, :1] if low < x.shape[-1] < high else x[:, 1:2])) == OTHER_GIVEN
    assert _found(lambda _, x: x * 2 if low < x.shape[-1] < high else x) == OTHER_OPERATIONS


@pytest.mark.parametrize("number", [5, 8], ids=["what is left", "a full batch"])
def test_a_band_of_numbers_of_samples_is_found(number: int) -> None:
    assert _found(lambda _, x: x * 2 if len(x) == number else x) == OTHER_OPERATIONS


def test_one_scene_in_a_band_is_found_though_windows_are_not() -> None:
    assert _found(lambda _, x: x * 2 if len(x) == 1 and x.shape[-1] > 1000 else x) == OTHER_OPERATIONS


def test_sizes_may_grow_with_the_picture() -> None:
    assert _found(lambda n, x: n.c(F.pad(x, (2, 2, 2, 2)))[..., 2:-2, 2:-2], c=conv(5)) is None
    assert _found(lambda n, x: (n.weight @ x.flatten(2)).view(x.shape)) is None

    def padded_and_flattened(n: Net, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        y = F.pad(x, (1, 1, 1, 1)).flatten(2)
        return (n.weight @ y).view(len(x), BANDS, height + 2, width + 2)[..., 1:-1, 1:-1]

    assert _found(padded_and_flattened) is None  # height and width and area and 4


def test_sizes_that_do_not_grow_evenly_are_found() -> None:
    def moved(_: Net, x: torch.Tensor) -> torch.Tensor:
        start = 3 if 600 < x.shape[-1] < 700 else 4
        return F.pad(x, (4, 4))[..., start : start + x.shape[-1]] * 2

    assert _found(moved) == OTHER_GIVEN


def test_what_does_not_run_is_told() -> None:
    def picky(_: Net, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] == 1400:
            raise ValueError("no")
        return x

    assert _found(picky) == "does not take pictures of 1800 x 1400 px (ValueError: no)"


def test_sizes_that_are_no_multiples_may_be_compared() -> None:
    model = Net(lambda n, x: n.c(x) if x.shape[-1] == 333 else x, c=conv())
    assert does_the_same(model, [(1, BANDS, 331, 334), (1, BANDS, 77, 91)])
    assert not does_the_same(model, [(1, BANDS, 331, 333), (1, BANDS, 77, 91)])
