"""Finds the raw scenes of a job, each with the files of its bands and labels and the name that it is to have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from outsize.data.scenes import find_images, fixed_folder, labels_path, polygons_of, scene_name, stack_files
from outsize.job import DataSection, PrepareSection
from outsize.prepare.piece import Piece
from outsize.prepare.scenes import RawScene, SceneSettings, scene_piece
from outsize.raster.polygons import is_vector


def scene_pieces(section: PrepareSection, data: DataSection, folder: Path, version: str) -> list[Piece]:
    """Return what is to be made of the scenes that a section names; patterns begin at `folder`."""
    # what [data] says of files is about those that are prepared, what it says of classes about both
    raw = data.model_copy(update={"labels": section.labels, "stack": section.stack, "shrink": 1, "bands": ()})
    colours = {each.value: each.colour for each in data.classes}
    settings = SceneSettings(colours, tuple(data.ignore_value), section.crs, section.resampling)
    patterns = [str(folder / pattern) for pattern in section.images]
    return [
        scene_piece(scene, settings, version) for pattern in patterns for scene in _raw_scenes(pattern, raw)
    ]


def _raw_scenes(pattern: str, raw: DataSection) -> Iterator[RawScene]:
    top = fixed_folder(pattern)
    labels_name = raw.labels or "{stem}/"  # which is the name of no file
    for path in find_images([pattern], labels_name, folders=bool(raw.stack)):
        named = scene_name(path, raw)
        labels = labels_path(named, raw.labels) if raw.labels else None
        yield RawScene(
            named.relative_to(top).with_suffix("").as_posix(),
            path,
            stack_files(path, raw) if raw.stack else None,
            polygons_of(labels, raw) if labels is not None and is_vector(labels.name) else labels,
            raw.allow_references,
        )
