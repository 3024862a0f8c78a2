"""The formats `scenes` and `folders`: images by the patterns of a job, each with labels of a name like its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from outsize.data.formats.folders import open_picture
from outsize.data.formats.ids import open_objects
from outsize.data.formats.layout import Layout
from outsize.data.scenes import LabelledScene, find_images, labels_path, open_scene, scene_name
from outsize.data.split import SPLITS, share_out
from outsize.errors import DataError, JobError, explain
from outsize.job import DataSection
from outsize.raster.polygons import is_vector

_OPEN = {"scenes": open_scene, "folders": open_picture}


def find_patterns(data: DataSection, seed: int) -> Layout:
    """Find the images that the job names, and share them out."""
    shared = _share(data, seed)
    paths = list(dict.fromkeys(path for held in shared.values() for path in held))
    missing = _missing_pairs(paths, data)
    return Layout(
        shared,
        partial(_open, data),
        partial(_own_labels, data),
        (_missing(missing, len(paths)),) if missing else (),
    )


def _open(data: DataSection, path: Path, cache: Path) -> LabelledScene:
    return (open_objects if data.objects else _OPEN[data.format])(path, data, cache)


def _own_labels(data: DataSection, path: Path) -> Path | None:
    return None if is_vector(data.labels) else labels_path(scene_name(path, data), data.labels)


def _share(data: DataSection, seed: int) -> dict[str, tuple[Path, ...]]:
    lists = {split: getattr(data, split) for split in SPLITS}
    has_lists = any(lists.values())
    if bool(data.images) == has_lists:
        found = "both" if has_lists else "neither"
        need = "data.images, or data.train with data.val and data.test"
        raise JobError(explain("it is not clear which images to use", found, need, "name the images one way"))
    has_folders = bool(data.stack)
    if has_lists:
        if not lists["train"]:
            need, remedy = "image files", "name some in data.train"
            raise JobError(explain("nothing to train on", "no data.train", need, remedy))
        return {split: find_images(names, data.labels, folders=has_folders) for split, names in lists.items()}
    paths = find_images(data.images, data.labels, folders=has_folders)
    if data.split.by == "blocks":
        return {"train": paths, "val": (), "test": ()}
    return share_out(paths, data.split, seed)


def _missing_pairs(paths: Sequence[Path], data: DataSection) -> list[tuple[Path, Path]]:
    pairs = [(path, labels_path(scene_name(path, data), data.labels)) for path in paths]
    return [(image, labels) for image, labels in pairs if not labels.exists() and image.exists()]


def _missing(pairs: Sequence[tuple[Path, Path]], num_images: int) -> DataError:
    image, labels = pairs[0]
    more = f", and those of {len(pairs) - 1} more of {num_images} images" if len(pairs) > 1 else ""
    names = [each.name for each, _ in pairs[1:4]]
    more += f" ({', '.join(names)}{', ...' if len(pairs) > 4 else ''})" if names else ""
    remedy = "add them, leave the images out, or correct data.labels"
    return DataError(
        explain(f"labels of {image} are missing", f"no {labels}{more}", "labels of each image", remedy)
    )
