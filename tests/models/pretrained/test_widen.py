"""Kernels for other bands, by name or wavelength."""

from itertools import permutations

import pytest
import torch

from outsize.errors import ModelError
from outsize.models import build_model
from outsize.models.pretrained.widen import (
    RGB,
    check_named,
    find_ends,
    match_bands,
    spread_colours,
    take,
    unknown_bands,
)

KERNELS = torch.randn(8, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
RED, GREEN, BLUE = KERNELS.unbind(1)


def test_colours_keep_their_kernels_in_any_order() -> None:
    for order in permutations(range(3)):
        spread = spread_colours(KERNELS, [RGB[index] for index in order])
        assert torch.equal(spread, KERNELS[:, list(order)])


def test_other_bands_take_the_nearest_colour_and_share_it() -> None:
    spread = spread_colours(KERNELS, ["B02", "B03", "B04", "B08"])
    for found, wanted in zip(spread.unbind(1), (BLUE, GREEN, RED / 2, RED / 2), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_colour_without_a_band_goes_to_its_neighbour() -> None:
    spread = spread_colours(KERNELS, ["nir", "red", "green"])
    for found, wanted in zip(spread.unbind(1), (RED / 2, RED / 2, GREEN + BLUE), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "bands",
    [("grey",), ("nir",), ("nir", "red", "green"), ("B2", "B3", "B4", "B8", "B11", "B12"), ("blue", "dem")],
)
def test_a_grey_picture_causes_the_same_activations(bands: tuple[str, ...]) -> None:
    grey = torch.randn(1, 1, 9, 9, dtype=torch.float64)
    before = torch.conv2d(grey.expand(-1, 3, -1, -1), KERNELS)
    after = torch.conv2d(grey.expand(-1, len(bands), -1, -1), spread_colours(KERNELS, bands))
    torch.testing.assert_close(after, before)


def test_permuting_bands_with_their_names_changes_nothing() -> None:
    bands = ("nir", "green", "dem", "red", "swir", "blue")
    pixels = torch.randn(1, 6, 9, 9, dtype=torch.float64)
    wanted = torch.conv2d(pixels, spread_colours(KERNELS, bands))
    order = [4, 0, 5, 2, 1, 3]
    found = torch.conv2d(pixels[:, order], spread_colours(KERNELS, [bands[index] for index in order]))
    torch.testing.assert_close(found, wanted)


def test_bands_of_no_wavelength_begin_with_zeros() -> None:
    bands = ("red", "dem", "green", "blue", "thermal 10.9um")
    spread = spread_colours(KERNELS, bands)
    assert unknown_bands(bands) == ("dem", "thermal 10.9um")
    assert not spread[:, [1, 4]].any()
    assert torch.equal(spread[:, [0, 2, 3]], KERNELS)


def test_nothing_known_is_refused() -> None:
    with pytest.raises(ModelError, match=r"fit none of the bands: found vv, vh.*data\.bands"):
        spread_colours(KERNELS, ("vv", "vh"))
    for bands, count in (((), 4), (("red", ""), 2), (("red", "green"), 3)):
        with pytest.raises(ModelError, match=r"a name for each band.*data\.bands"):
            check_named(bands, count, "no")


def test_bands_match_by_name_first_and_then_by_wavelength() -> None:
    assert match_bands(("red", "nir"), ("NIR", "swir", "red")) == (1, None, 0)
    assert match_bands(("red", "green", "blue"), ("B02", "B03", "B04", "B05")) == (2, 1, 0, None)
    assert match_bands(("nir",), ("B8", "B8A")) == (0, None)  # one band is given once
    assert match_bands(("B8A", "B8"), ("nir08", "nir")) == (0, 1)
    assert match_bands(("vv", "dem"), ("dem", "vh")) == (1, None)


def test_take() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(take(values, (2, None, 0, 1), axis=1), torch.tensor([[2.0, 0, 0, 1], [5, 0, 3, 4]]))
    own = torch.full((3, 3), -1.0)
    assert torch.equal(take(values, (None, 1, None), axis=0, like=own)[1], values[1])
    assert (own == -1).all()


@pytest.mark.parametrize(
    ("name", "first", "heads"),
    [
        ("unet", {"encoder.0.0.weight"}, {"head.weight", "head.bias"}),
        (
            "smp:Unet/mobileone_s0",
            {"encoder.stage0.rbr_conv.0.conv.weight", "encoder.stage0.rbr_scale.conv.weight"},
            {"segmentation_head.0.weight", "segmentation_head.0.bias"},
        ),
    ],
)
def test_ends_are_found_and_chance_is_left_alone(name: str, first: set[str], heads: set[str]) -> None:
    model = build_model(name, num_classes=4, in_channels=4)
    before = torch.random.get_rng_state()
    ends = find_ends(model, lambda: build_model(name, num_classes=5, in_channels=5))
    assert ends.first == first
    assert ends.heads == heads
    assert torch.equal(torch.random.get_rng_state(), before)
