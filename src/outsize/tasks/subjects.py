"""Labelled scenes of a split that are scored: their names, and which part of each counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, explain
from outsize.job import Job
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tiles.window import Window

if TYPE_CHECKING:
    from outsize.data.scenes import LabelledScene
    from outsize.raster.polygons import AreaOfInterest


@dataclass(frozen=True)
class Subject:
    """A labelled scene, the name it goes by, and the part of it that is asked for."""

    name: str
    scene: LabelledScene
    inside: AreaOfInterest | None = None


def open_split(
    run: RunFolder, job: Job, split: str, aoi: Path | None, reporter: Reporter
) -> tuple[Subject, ...]:
    """Open the scenes of a split; those that an area of interest misses are left out, and named."""
    from outsize.data.recall import recall_scenes
    from outsize.raster.polygons import open_aoi

    scenes = recall_scenes(run.split, split, job.data)
    names = short_names([scene.image.path for scene in scenes])
    if aoi is None:
        return tuple(Subject(*each) for each in zip(names, scenes, strict=True))
    found = [
        Subject(name, scene, open_aoi(aoi, scene.image)) for name, scene in zip(names, scenes, strict=True)
    ]
    met = tuple(each for each in found if each.inside is not None)
    refuse_missed(aoi, len(met))
    for each in found:
        if each.inside is None:
            reporter.say("skipped", f"{each.name} is outside {aoi}: left out", scene=each.name)
    return met


def refuse_missed(aoi: Path, num_met: int) -> None:
    """Refuse an area of interest that lies on none of the scenes."""
    if num_met == 0:
        need, remedy = "polygons on at least one scene", "check its place and coordinate system in a GIS"
        raise DataError(explain(f"area {aoi} misses every scene", "no overlap", need, remedy))


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return file names, with the folders in which they differ where names are equal."""
    if len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    top = os.path.commonpath([path.resolve() for path in paths])
    return [path.resolve().relative_to(top).as_posix() for path in paths]


def counted_pixels(
    window: Window, areas: Sequence[Window], inside: AreaOfInterest | None
) -> NDArray[np.bool_] | None:
    """Say which pixels of a window belong to the split and the area of interest; None: all of them."""
    if not areas and inside is None:
        return None
    counted = np.full((window.height, window.width), not areas)
    for area in areas:
        counted[area.intersect(window).within(window).slices] = True
    if inside is not None:
        counted &= inside.mask(window)
    return counted
