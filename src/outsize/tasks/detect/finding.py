"""Finds the boxes of scenes: tiles of any number of them share batches; what tiles of one scene saw is settled.

threads     read b+1 .....          batches of windows of one shape, a few ahead
device      answers, boxes of b     a few hundred boxes come to the host
caller      boxes of b              settled when all tiles of a scene are there
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from outsize.data.feeding import prefetch
from outsize.data.opened import OpenScenes
from outsize.data.statistics import BandStatistics
from outsize.infer.prepare import make_prepare
from outsize.infer.stream import Prepare, Settings, Waits
from outsize.plan.plan import Tiling
from outsize.raster.reading import SceneInfo
from outsize.tasks.detect.settle import FoundBoxes, no_found, settle
from outsize.tasks.detect.terms import detector
from outsize.tiles.grid import cover
from outsize.tiles.window import Tile, Window

_AHEAD = 3  # batches that are read while one is computed

Looked = tuple[
    SceneInfo, Sequence[Window]
]  # a scene, and the areas of it that are of interest; none: all of it
_Place = tuple[int, Tile]  # number of the scene


@dataclass(frozen=True)
class BoxFinder:
    """A detector and all that it needs to look at scenes."""

    model: nn.Module
    bands: tuple[str, ...]
    statistics: BandStatistics
    tiling: Tiling
    settings: Settings
    min_score: float = 0.0  # what is less sure is not even looked at
    flips: bool = False  # looks a second time at the mirrored picture

    def tiles(self, info: SceneInfo, areas: Sequence[Window] = ()) -> tuple[Tile, ...]:
        """Cover a scene, or those parts of it that meet `areas`."""
        tiles = cover(info.height, info.width, self.tiling.core_px, self.tiling.halo)
        return tuple(
            tile for tile in tiles if not areas or any(area.intersect(tile.core).num_px for area in areas)
        )

    @torch.inference_mode()
    def detect(self, images: Tensor, valid: Tensor, prepare: Prepare) -> list[FoundBoxes]:
        """Return the boxes of raw pixels (picture, band, row, column), for each picture."""
        settings, on_gpu = self.settings, self.settings.device.type == "cuda"
        images, valid = (each.to(settings.device, non_blocking=on_gpu) for each in (images, valid))
        inputs = prepare(images, valid).contiguous(memory_format=torch.channels_last)
        # bfloat16 has few digits for a place; a CPU has nothing better
        half = torch.float16 if on_gpu else torch.bfloat16
        answers = self._answers(inputs, half if settings.bf16 else torch.float32)
        if settings.bf16 and on_gpu and not bool(torch.stack([each["sound"] for each in answers]).all()):
            warnings.warn("a picture is beyond float16, and is computed in float32", stacklevel=2)
            answers = self._answers(inputs, torch.float32)
        return [_on_host(each, self.min_score) for each in answers]

    def _answers(self, inputs: Tensor, dtype: torch.dtype) -> list[dict[str, Tensor]]:
        own, size = detector(self.model), (inputs.shape[-2], inputs.shape[-1])
        with torch.autocast(inputs.device.type, dtype, enabled=dtype != torch.float32):
            found = own.find(self.model(inputs), size)
            if not self.flips:
                return found
            mirrored = own.find(self.model(inputs.flip(-1)), size)
        return [_with_mirrored(*each, size[1], own.nms_iou) for each in zip(found, mirrored, strict=True)]


def find_boxes(
    finder: BoxFinder,
    scenes: Sequence[Looked],
    *,
    advance: Callable[[], Any] = lambda: None,
    waits: Waits | None = None,
) -> Iterator[tuple[int, FoundBoxes]]:
    """Yield number and boxes of each scene, in an order of its own: those of one form follow each other.

    A picture may be read smaller; its boxes are in the pixels of its file.
    """
    tiles = [finder.tiles(*each) for each in scenes]
    seen: dict[int, list[tuple[Tile, FoundBoxes]]] = {index: [] for index in range(len(scenes))}
    for index, own in enumerate(tiles):
        if not own:
            yield index, no_found()
    waits = waits or Waits()
    for batch, found in _detected(finder, scenes, _batches(finder, scenes, tiles), waits):
        for (index, tile), own_boxes in zip(batch, found, strict=True):
            seen[index].append((tile, own_boxes))
            advance()
            if len(seen[index]) == len(tiles[index]):
                info = scenes[index][0]
                yield index, settle(seen.pop(index), info.window).scaled(info.shrink)


def _batches(
    finder: BoxFinder, scenes: Sequence[Looked], tiles: Sequence[Sequence[Tile]]
) -> list[list[_Place]]:
    """Share out the tiles of all scenes; those of one batch have one form."""
    places = [(index, tile) for index, own in enumerate(tiles) for tile in own]
    places.sort(key=lambda place: _form(scenes[place[0]][0], place[1]))
    size, batches = finder.settings.batch, []
    for _, group in groupby(places, key=lambda place: _form(scenes[place[0]][0], place[1])):
        alike = list(group)
        batches += [alike[first : first + size] for first in range(0, len(alike), size)]
    return batches


def _detected(
    finder: BoxFinder, scenes: Sequence[Looked], batches: Sequence[list[_Place]], waits: Waits
) -> Iterator[tuple[list[_Place], list[FoundBoxes]]]:
    opened, pin = OpenScenes(), finder.settings.device.type == "cuda"

    def read(number: int) -> tuple[Tensor, Tensor]:
        infos = [scenes[index][0] for index, _ in batches[number]]
        return _read(opened, infos, [tile for _, tile in batches[number]], pin=pin)

    num_threads = max(1, min(finder.settings.num_threads, 4))
    reads = prefetch(read, range(len(batches)), num_threads=num_threads, num_ahead=_AHEAD)
    try:
        began_s = time.perf_counter()
        for batch, (images, valid) in zip(batches, reads, strict=True):
            read_s = time.perf_counter()
            prepare = make_prepare(finder.bands, scenes[batch[0][0]][0], finder.statistics)
            found = finder.detect(images, valid, prepare)
            waits.reads_s += read_s - began_s
            waits.device_s += time.perf_counter() - read_s
            yield batch, found
            began_s = time.perf_counter()
    finally:
        opened.close()


def _read(
    opened: OpenScenes, infos: Sequence[SceneInfo], tiles: Sequence[Tile], *, pin: bool
) -> tuple[Tensor, Tensor]:
    window, info = tiles[0].read, infos[0]
    shape = (len(tiles), info.num_bands, window.height, window.width)
    images = torch.empty(shape, dtype=getattr(torch, info.dtype), pin_memory=pin)
    valid = torch.empty((shape[0], *shape[2:]), dtype=torch.bool, pin_memory=pin)
    for own, tile, pixels, holds in zip(infos, tiles, images.numpy(), valid.numpy(), strict=True):
        with opened.lend(own) as reader:
            reader.read_into(tile.read, pixels, holds)
    return images, valid


def _form(info: SceneInfo, tile: Tile) -> tuple[int, int, str, tuple[str, ...], int]:
    """What windows of one batch have in common."""
    return (tile.read.height, tile.read.width, info.dtype, tuple(info.band_names), info.num_bands)


def _on_host(answer: dict[str, Tensor], min_score: float) -> FoundBoxes:
    sides, scores = (answer[name].double().cpu().numpy() for name in ("boxes", "scores"))
    found = FoundBoxes(sides, answer["labels"].cpu().numpy() - 1, scores)
    return found.take(found.scores >= min_score) if min_score else found


def _with_mirrored(
    found: dict[str, Tensor], mirrored: dict[str, Tensor], width: int, iou: float
) -> dict[str, Tensor]:
    """Put what was found in the mirrored picture to the rest; of two boxes of one object the likelier stays."""
    from torchvision.ops import batched_nms  # type: ignore[import-untyped]

    left, top, right, bottom = mirrored["boxes"].unbind(-1)
    boxes = torch.cat((found["boxes"], torch.stack((width - right, top, width - left, bottom), -1)))
    scores, labels = (torch.cat((found[name], mirrored[name])) for name in ("scores", "labels"))
    kept = batched_nms(boxes, scores, labels, iou)
    sound = found["sound"] & mirrored["sound"]
    return {"boxes": boxes[kept], "scores": scores[kept], "labels": labels[kept], "sound": sound}
