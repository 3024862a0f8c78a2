"""The first layer for other bands and the head for other classes: by name or wavelength, never by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.known.wavelengths import wavelength_nm

RGB = ("red", "green", "blue")

_SAME_BAND = (
    0.03  # largest relative difference of wavelengths: Landsat's red is Sentinel-2's, its red edge is not
)
_LONGEST_NM = 3000.0  # beyond, a sensor sees heat and not sunlight: no colour comes near


@dataclass(frozen=True)
class Ends:
    """Names of the weights that depend on the number of bands and on the number of classes."""

    first: frozenset[str]  # (kernel, band, row, column)
    heads: frozenset[str]  # (class, ...)


def find_ends(model: nn.Module, wider: Callable[[], nn.Module]) -> Ends:
    """Find what changes where a model is built for one band and one class more; chance is left as it was."""
    with torch.random.fork_rng(devices=()):
        other = wider().state_dict()
    first, heads = set(), set()
    for name, value in model.state_dict().items():
        changed = [axis for axis, size in enumerate(other[name].shape) if value.shape[axis] != size]
        if changed == [1]:
            first.add(name)
        elif changed == [0]:
            heads.add(name)
    return Ends(frozenset(first), frozenset(heads))


def check_named(bands: Sequence[str], num_bands: int, why: str) -> None:
    """Refuse bands without names where kernels are to be given to them."""
    if len(bands) != num_bands or not all(bands):
        listed = ", ".join(name or "unnamed" for name in bands) or f"{num_bands} unnamed bands"
        needed = "a name for each band, such as red or B08, or its wavelength, such as 665nm"
        raise ModelError(
            explain(why, listed, needed, "name them in data.bands, or set model.weights = 'none'")
        )


def spread_colours(kernels: Tensor, bands: Sequence[str]) -> Tensor:
    """Turn kernels for red, green, blue into kernels for other bands of known wavelength.

    Each band takes the colour nearest to it, and each colour that no band took goes to the band nearest to it; bands
    with one colour share it equally. So the kernels' sum over the bands is what it was over the colours, and a grey
    picture causes the same activations. A band of no known wavelength begins with zeros: it adds nothing at first.

        colours     red     green  blue
                   /   \\      |   /
        bands    nir   red   green     half of red's kernels each; green's and blue's together
    """
    lengths = [wavelength_nm(band) for band in bands]
    known = {
        index: length for index, length in enumerate(lengths) if length is not None and length <= _LONGEST_NM
    }
    if not known:
        needed = "at least one band of known wavelength, such as red, B08 or 665nm"
        remedy = "name the bands in data.bands, or set model.weights = 'none'"
        raise ModelError(
            explain("pretrained weights fit none of the bands", ", ".join(bands), needed, remedy)
        )
    colours = [wavelength_nm(colour) or 0.0 for colour in RGB]
    takers: list[list[int]] = [[] for _ in RGB]
    for index, length in known.items():
        takers[_nearest(length, colours)].append(index)
    for colour, taken in zip(colours, takers, strict=True):
        if not taken:
            taken.append(list(known)[_nearest(colour, list(known.values()))])
    shares = torch.zeros(len(bands), len(RGB), dtype=kernels.dtype)
    for colour_index, taken in enumerate(takers):
        shares[taken, colour_index] = 1 / len(taken)
    return torch.einsum("oc...,bc->ob...", kernels, shares)


def unknown_bands(bands: Sequence[str]) -> tuple[str, ...]:
    """List the bands that `spread_colours` gives zeros."""
    return tuple(band for band in bands if (wavelength_nm(band) or 2 * _LONGEST_NM) > _LONGEST_NM)


def match_bands(source: Sequence[str], bands: Sequence[str]) -> tuple[int | None, ...]:
    """Return for each band which band of the source it is: of the same name, else of the same wavelength."""
    lowered = [name.lower() for name in source]
    matches = [lowered.index(band.lower()) if band.lower() in lowered else None for band in bands]
    pairs = sorted(
        (abs(mine / theirs - 1), index, candidate)
        for index, band in enumerate(bands)
        for candidate, name in enumerate(source)
        if (mine := wavelength_nm(band)) is not None and (theirs := wavelength_nm(name)) is not None
    )
    for difference, index, candidate in pairs:
        if difference <= _SAME_BAND and matches[index] is None and candidate not in matches:
            matches[index] = candidate
    return tuple(matches)


def take(values: Tensor, matches: Sequence[int | None], axis: int, like: Tensor | None = None) -> Tensor:
    """Put together kernels or head rows by what they match; the others are zeros, or stay as in `like`."""
    shape = list(values.shape)
    shape[axis] = len(matches)
    taken = values.new_zeros(shape) if like is None else like.clone().to(values.dtype)
    for index, match in enumerate(matches):
        if match is not None:
            taken.select(axis, index).copy_(values.select(axis, match))
    return taken


def _nearest(length: float, candidates: Sequence[float]) -> int:
    return min(range(len(candidates)), key=lambda index: abs(candidates[index] - length))
