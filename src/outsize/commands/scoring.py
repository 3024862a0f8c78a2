"""What the verbs that score have in common: the scenes of a split, their labels, and the maps of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import DataError, RunError, explain
from outsize.job import Job
from outsize.progress import Reporter
from outsize.runs import RunFolder

if TYPE_CHECKING:
    from outsize.data.scenes import LabelledScene
    from outsize.infer.evaluate import MapFiles
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


def files_of(run: RunFolder, scenes: Sequence[LabelledScene]) -> list[MapFiles]:
    """Return the map of each scene that the run has predicted; all of them must be there."""
    from outsize.infer.evaluate import MapFiles
    from outsize.infer.ledger import read_ledger

    ledger, files = read_ledger(run.predictions), []
    for scene in scenes:
        path = scene.image.path
        entry = ledger.get(str(path.resolve()))
        classes = _beside(run, entry["map"]) if entry else None
        if entry is None or classes is None:
            remedy = f"run `outsize predict {run.path} {path}` first"
            found = f"none in {run.predictions}"
            raise RunError(explain(f"no map of {path.name}", found, "a predicted scene", remedy))
        if "objects" in entry:
            need, remedy = (
                "classes of pixels",
                "compare the figures of `outsize evaluate` of each run instead",
            )
            raise RunError(explain(f"{path.name} has no map to compare", "objects", need, remedy))
        confidence = _beside(run, entry["confidence"]) if "confidence" in entry else None
        files.append(MapFiles(classes, confidence, entry.get("unanswered_px", 0)))
    return files


def results_of(run: RunFolder, scenes: Sequence[LabelledScene]) -> list[tuple[Path, float]]:
    """Return the file of each scene's objects and the score that those on the map have at least."""
    from outsize.infer.ledger import read_ledger

    ledger, files = read_ledger(run.predictions), []
    for scene in scenes:
        path = scene.image.path
        entry = ledger.get(str(path.resolve()))
        results = _beside(run, entry["objects"]) if entry and "objects" in entry else None
        if entry is None or results is None:
            remedy = f"run `outsize predict {run.path} {path}` first"
            found = f"none in {run.predictions}"
            raise RunError(explain(f"no objects of {path.name}", found, "a predicted scene", remedy))
        files.append((results, float(entry["min_score"])))
    return files


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return file names, with the folders in which they differ where names are equal."""
    if len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    top = os.path.commonpath([path.resolve() for path in paths])
    return [path.resolve().relative_to(top).as_posix() for path in paths]


def _beside(run: RunFolder, name: str) -> Path | None:
    """Return a file of the predictions, None where it is gone.

    It lies beside the ledger that names it: a run that was copied has maps of its own.
    """
    path = run.predictions / Path(name).name
    return path if path.is_file() else None
