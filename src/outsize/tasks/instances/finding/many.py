"""Finds the objects of many scenes: pictures of one size share batches, larger scenes go tile by tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from outsize.data.feeding import prefetch
from outsize.data.object import Object
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.tasks.instances.finding.objects import Finder, find_objects, only_valid
from outsize.tiles.window import Tile, Window


def find_in_many(
    finder: Finder, scenes: Sequence[tuple[SceneInfo, Sequence[Window]]]
) -> Iterator[tuple[int, tuple[Object, ...]]]:
    """Yield number and objects of each scene, in an order of its own: those of one size follow each other.

    Each scene comes with the areas of it that are of interest; none: all of it.
    """
    tiles = [finder.tiles(*each) for each in scenes]
    small = [index for index, own in enumerate(tiles) if len(own) == 1]
    small.sort(key=lambda index: _form(scenes[index][0], tiles[index][0]))
    for _, indices in groupby(small, key=lambda index: _form(scenes[index][0], tiles[index][0])):
        same = list(indices)
        yield from _find_together(finder, [(index, scenes[index][0], tiles[index][0]) for index in same])
    for index, own in enumerate(tiles):
        if len(own) > 1:
            with SceneReader(scenes[index][0]) as reader:
                yield index, find_objects(finder, reader, own)
        elif not own:
            yield index, ()


def _find_together(
    finder: Finder, pictures: Sequence[tuple[int, SceneInfo, Tile]]
) -> Iterator[tuple[int, tuple[Object, ...]]]:
    """Run pictures of one size, each in one window, in batches; each is opened for a moment only."""
    size = finder.settings.batch
    batches = [pictures[first : first + size] for first in range(0, len(pictures), size)]
    prepare = finder.prepare(pictures[0][1])

    def read(number: int) -> tuple[Tensor, Tensor]:
        return _read(batches[number], pin=finder.settings.device.type == "cuda")

    reads = prefetch(read, range(len(batches)), num_threads=min(finder.settings.num_threads, 4), num_ahead=4)
    for batch, (images, valid) in zip(batches, reads, strict=True):
        found = finder.detect(images, valid, prepare)
        for (index, _, tile), objects, holds in zip(batch, found, valid.numpy(), strict=True):
            yield index, tuple(_placed(each, tile) for each in only_valid(objects, holds))


def _read(pictures: Sequence[tuple[int, SceneInfo, Tile]], *, pin: bool) -> tuple[Tensor, Tensor]:
    _, info, tile = pictures[0]
    shape = (len(pictures), info.num_bands, tile.read.height, tile.read.width)
    images = torch.empty(shape, dtype=getattr(torch, info.dtype), pin_memory=pin)
    valid = torch.empty((shape[0], *shape[2:]), dtype=torch.bool, pin_memory=pin)
    for (_, own, place), pixels, holds in zip(pictures, images.numpy(), valid.numpy(), strict=True):
        with SceneReader(own) as reader:
            reader.read_into(place.read, pixels, holds)
    return images, valid


def _placed(each: Object, tile: Tile) -> Object:
    window = each.window
    return replace(
        each, window=replace(window, row=window.row + tile.read.row, col=window.col + tile.read.col)
    )


def _form(info: SceneInfo, tile: Tile) -> tuple[int, int, str, tuple[str, ...], int]:
    """What pictures of one batch have in common."""
    return (tile.read.height, tile.read.width, info.dtype, tuple(info.band_names), info.num_bands)
