"""Finds the objects of a whole scene: tiles that overlap through a detector, sightings joined to objects.

    threads     read b+1 .....                     batches of windows, a few ahead
    device      detect b, paste masks              boxes and small masks never become pictures
    caller      sightings of b                     at the end joined, strip after strip of tiles

In memory are a few batches of windows and the masks of the objects, each in a window of its own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.data.feeding import prefetch
from outsize.data.object import Object, make_object
from outsize.data.statistics import BandStatistics
from outsize.errors import ModelError, explain
from outsize.infer.prepare import make_prepare
from outsize.infer.stream import Prepare, Settings, Waits
from outsize.plan.plan import Tiling
from outsize.progress import Bar
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.tasks.instances.finding.paste import decode_objects
from outsize.tasks.instances.finding.seams import Sighting, see, settle
from outsize.tiles.grid import cover
from outsize.tiles.window import Tile, Window

_AHEAD = 2  # batches that are read while one is computed


@dataclass(frozen=True)
class Finder:
    """A detector and all that it needs to look at scenes."""

    model: nn.Module
    bands: tuple[str, ...]
    statistics: BandStatistics
    tiling: Tiling
    settings: Settings
    min_score: float = 0.0  # what is less sure is not even looked at
    sure: float = 0.0  # what is less sure does not change what is surer

    def tiles(self, info: SceneInfo, areas: Sequence[Window] = ()) -> tuple[Tile, ...]:
        """Cover a scene, or those parts of it that meet `areas`."""
        tiles = cover(info.height, info.width, self.tiling.core_px, self.tiling.halo)
        return tuple(
            tile for tile in tiles if not areas or any(area.intersect(tile.core).num_px for area in areas)
        )

    def prepare(self, info: SceneInfo) -> Prepare:
        """Return the function from raw pixels of a scene to the model's input."""
        return make_prepare(self.bands, info, self.statistics)

    @torch.inference_mode()
    def detect(self, images: Tensor, valid: Tensor, prepare: Prepare) -> list[tuple[Object, ...]]:
        """Return the objects of raw pixels (picture, band, row, column), for each picture."""
        settings, on_gpu = self.settings, self.settings.device.type == "cuda"
        images, valid = (each.to(settings.device, non_blocking=on_gpu) for each in (images, valid))
        inputs = prepare(images, valid).contiguous(memory_format=torch.channels_last)
        # bfloat16 has so few digits that a small object's box may come out a pixel off; a CPU has nothing better
        half = torch.float16 if on_gpu else torch.bfloat16
        answers = self._answers(inputs, half if settings.bf16 else torch.float32)
        if settings.bf16 and on_gpu and not are_sound(answers):
            warnings.warn("a picture is beyond float16, and is computed in float32", stacklevel=2)
            answers = self._answers(inputs, torch.float32)
        return decode_objects(answers, (images.shape[-2], images.shape[-1]), min_score=self.min_score)

    def _answers(self, inputs: Tensor, dtype: torch.dtype) -> Any:
        with torch.autocast(inputs.device.type, dtype, enabled=dtype != torch.float32):
            answers: Any = self.model(inputs)
        _refuse_other_answers(self.model, answers, len(inputs))
        return answers


def find_objects(
    finder: Finder,
    reader: SceneReader,
    tiles: Sequence[Tile],
    *,
    inside: AreaOfInterest | None = None,
    bar: Bar | None = None,
    waits: Waits | None = None,
) -> tuple[Object, ...]:
    """Return every object of a scene once, in its rows and columns; of an area of interest, those mostly inside."""
    sightings: list[Sighting] = []
    for tile, objects in detect_tiles(finder, reader, tiles, waits):
        sightings += see(objects, tile, reader.info.window)
        if bar is not None:
            bar.advance()
    found = settle(sightings, finder.sure)
    return found if inside is None else tuple(each for each in found if _is_inside(each, inside))


def detect_tiles(
    finder: Finder, reader: SceneReader, tiles: Sequence[Tile], waits: Waits | None = None
) -> Iterator[tuple[Tile, tuple[Object, ...]]]:
    """Yield the objects of each tile's window, in the rows and columns of the window."""
    settings, prepare, waits = finder.settings, finder.prepare(reader.info), waits or Waits()
    batches = [tiles[start : start + settings.batch] for start in range(0, len(tiles), settings.batch)]

    def read(index: int) -> tuple[Tensor, Tensor]:
        return _read(reader, batches[index], settings.device)

    num_threads = min(settings.num_threads, _AHEAD)
    reads = prefetch(read, range(len(batches)), num_threads=num_threads, num_ahead=_AHEAD)
    began_s = time.perf_counter()
    for batch, (images, valid) in zip(batches, reads, strict=True):
        read_s = time.perf_counter()
        found = finder.detect(images, valid, prepare)
        waits.reads_s += read_s - began_s
        waits.device_s += time.perf_counter() - read_s
        for tile, objects, holds in zip(batch, found, valid.numpy(), strict=True):
            yield tile, only_valid(objects, holds)
        began_s = time.perf_counter()


def _read(reader: SceneReader, tiles: Sequence[Tile], device: torch.device) -> tuple[Tensor, Tensor]:
    window, info, pin = tiles[0].read, reader.info, device.type == "cuda"
    shape = (len(tiles), info.num_bands, window.height, window.width)
    images = torch.empty(shape, dtype=getattr(torch, info.dtype), pin_memory=pin)
    valid = torch.empty((shape[0], *shape[2:]), dtype=torch.bool, pin_memory=pin)
    for tile, pixels, holds in zip(tiles, images.numpy(), valid.numpy(), strict=True):
        reader.read_into(tile.read, pixels, holds)
    return images, valid


def only_valid(objects: Sequence[Object], valid: NDArray[np.bool_]) -> tuple[Object, ...]:
    """Take the pixels without data away from objects; beyond the border of a scene there is none."""
    if valid.all():
        return tuple(objects)
    cut = (
        make_object(
            each.class_id,
            each.window,
            each.mask & valid[each.window.slices],
            score=each.score,
            clipped=each.clipped,
        )
        for each in objects
    )
    return tuple(each for each in cut if each is not None)


def are_sound(answers: Sequence[dict[str, Tensor]]) -> bool:
    """Say whether all numbers stayed in the range of what they were computed in; true of a model that does not tell."""
    answered = [answer["sound"] for answer in answers if "sound" in answer]
    return not answered or bool(torch.stack(answered).all())


def _is_inside(each: Object, inside: AreaOfInterest) -> bool:
    return 2 * int(np.count_nonzero(each.mask & inside.mask(each.window))) >= each.num_px


def _refuse_other_answers(model: nn.Module, answers: Any, num_pictures: int) -> None:
    names = {"boxes", "labels", "scores", "masks"}
    if (
        not isinstance(answers, Sequence)
        or len(answers) != num_pictures
        or any(not isinstance(each, dict) or not names <= each.keys() for each in answers)
    ):
        need, remedy = (
            f"for each picture its {', '.join(sorted(names))}",
            "predict with a model of task instances",
        )
        raise ModelError(
            explain("the model finds no objects", f"{type(model).__name__}'s answer", need, remedy)
        )
