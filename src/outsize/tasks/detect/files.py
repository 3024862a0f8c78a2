"""The files of predicted boxes: one that scores are counted from, KITTI's text, layers for a GIS, a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.boxes import Boxes, gather
from outsize.data.formats import kitti_lines
from outsize.data.object import Object
from outsize.errors import RunError, explain
from outsize.files.ownership import MADE_BY, NONE_GIVEN, Consent
from outsize.job import BoxesSection
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo, describe
from outsize.raster.vectors import write_objects
from outsize.runs import read_json, write_text
from outsize.tasks.detect.picture import draw_boxes
from outsize.tasks.detect.settle import FoundBoxes
from outsize.tasks.pictures import Colour
from outsize.tiles.window import Window


@dataclass(frozen=True)
class BoxProducts:
    """What a prediction of boxes leaves behind, and where; `stem` is a path without its ending."""

    stem: Path
    section: BoxesSection
    has_place: bool  # on Earth
    inside: AreaOfInterest | None = None
    consent: Consent = NONE_GIVEN
    grows: bool = False

    @property
    def named(self) -> dict[str, Path]:
        """All files by what predict.json calls them; the first is what `evaluate` reads."""
        section, files = self.section, {"map": self._ending(".json")}
        files |= {"kitti": self._ending(".txt")} if section.kitti else {}
        vectors = ("gpkg" if self.has_place else "none") if section.vectors == "auto" else section.vectors
        files |= {} if vectors == "none" else {"vectors": self._ending(f".{vectors}")}
        return files | ({"picture": self._ending("_boxes.png")} if section.picture else {})

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return tuple(self.named.values())

    def _ending(self, ending: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}{ending}")


def write_products(
    found: FoundBoxes,
    info: SceneInfo,
    products: BoxProducts,
    classes: Sequence[tuple[str, Colour]],
    bands: Sequence[str],
) -> None:
    """Write all files that are wanted of one scene's boxes; layers and picture have the sure ones only."""
    files, names = products.named, [name for name, _ in classes]
    sure = found.take(found.scores >= products.section.min_score)
    write_boxes(files["map"], found, info, names)
    if "kitti" in files:
        write_text(files["kitti"], kitti_lines(as_named(found, names)))
    if "vectors" in files:
        write_objects(files["vectors"], _as_objects(sure), info, class_names=names)
    if "picture" in files:
        draw_boxes(files["picture"], info, {f"{len(sure)} found": sure}, classes, bands=bands)


def write_boxes(path: Path, found: FoundBoxes, info: SceneInfo, names: Sequence[str]) -> None:
    """Write the boxes of one scene as a COCO data set of one image, with scores; classes count from 1."""
    rows = zip(found.sides.tolist(), found.class_ids.tolist(), found.scores.tolist(), strict=True)
    tree = {
        "info": {"description": MADE_BY},
        "images": [{"id": 1, "file_name": info.path.name, "height": info.height, "width": info.width}],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names, start=1)],
        "annotations": [_annotation(number, *row) for number, row in enumerate(rows, start=1)],
    }
    write_text(path, json.dumps(tree) + "\n")


def read_boxes(path: Path) -> FoundBoxes:
    """Read the boxes that `write_boxes` wrote."""
    try:
        rows = read_json(path, "predict")["annotations"]
        corners = np.array([each["bbox"] for each in rows], np.float64).reshape(-1, 4)
        ids = np.array([each["category_id"] for each in rows], np.int64) - 1
        scores = np.array([each["score"] for each in rows], np.float64)
    except (ValueError, KeyError, TypeError) as error:
        need, remedy = "the boxes of a predicted scene", "run `outsize predict` again"
        raise RunError(explain(f"{path} cannot be read", error, need, remedy)) from error
    return FoundBoxes(np.concatenate((corners[:, :2], corners[:, :2] + corners[:, 2:]), 1), ids, scores)


def as_on_disk(info: SceneInfo) -> SceneInfo:
    """Return a picture that is read smaller as its file has it, for boxes are in the pixels of the file."""
    return info if info.shrink == 1 else describe(info.path)


def as_named(found: FoundBoxes, names: Sequence[str]) -> Boxes:
    """Return boxes with the names of their classes."""
    return gather(found.sides, [names[each] for each in found.class_ids.tolist()], scores=found.scores)


def _annotation(number: int, sides: Sequence[float], class_id: int, score: float) -> dict[str, Any]:
    left, top, right, bottom = (round(each, 3) for each in sides)
    bbox = [left, top, round(right - left, 3), round(bottom - top, 3)]
    about = {"bbox": bbox, "area": round(bbox[2] * bbox[3], 3), "iscrowd": 0, "score": round(score, 6)}
    return {"id": number, "image_id": 1, "category_id": class_id + 1, **about}


def _as_objects(found: FoundBoxes) -> list[Object]:
    """Return boxes as objects that fill them, in whole pixels."""
    objects = []
    for sides, class_id, score in zip(
        found.sides, found.class_ids.tolist(), found.scores.tolist(), strict=True
    ):
        left, top, right, bottom = (int(each) for each in np.round(sides))
        window = Window(top, left, max(1, bottom - top), max(1, right - left))
        mask = np.ones((window.height, window.width), np.bool_)
        objects.append(Object(class_id, window, mask, score=score))
    return objects
