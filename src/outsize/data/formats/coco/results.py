"""Objects as a COCO file and back: masks as runs, made from and read into local windows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.formats.coco.runs import pack_runs, runs, unpack_counts
from outsize.data.object import Object, make_object
from outsize.errors import RunError, explain
from outsize.files.ownership import MADE_BY
from outsize.files.trees import read_json_tree
from outsize.raster.reading import SceneInfo
from outsize.runs import write_text
from outsize.tiles.window import Window


def write_results(path: Path, objects: Sequence[Object], info: SceneInfo, class_names: Sequence[str]) -> None:
    """Write the objects of one scene as a COCO data set of one image, with scores; classes count from 1."""
    tree = {
        "info": {"description": MADE_BY},
        "images": [{"id": 1, "file_name": info.path.name, "height": info.height, "width": info.width}],
        "categories": [{"id": number, "name": name} for number, name in enumerate(class_names, start=1)],
        "annotations": [_annotation(number, each, info) for number, each in enumerate(objects, start=1)],
    }
    write_text(path, json.dumps(tree) + "\n")


def read_results(path: Path) -> tuple[Object, ...]:
    """Read the objects that `write_results` wrote."""
    try:
        tree = read_json_tree(path)
        return tuple(_object(each) for each in tree["annotations"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        found = getattr(error, "strerror", None) or f"{type(error).__name__} {error}"
        need, remedy = "the objects of a predicted scene", "run `outsize predict` again"
        raise RunError(explain(f"{path} cannot be read", found, need, remedy)) from error


def _annotation(number: int, each: Object, info: SceneInfo) -> dict[str, Any]:
    window = each.window
    return {
        "id": number,
        "image_id": 1,
        "category_id": each.class_id + 1,
        "segmentation": {
            "size": [info.height, info.width],
            "counts": pack_runs(runs(each, info.height, info.width)),
        },
        "bbox": [window.col, window.row, window.width, window.height],
        "area": each.num_px,
        "iscrowd": 0,
        "score": round(each.score, 6),
    }


def _object(entry: dict[str, Any]) -> Object:
    height = int(entry["segmentation"]["size"][0])
    col, row, width, num_rows = (int(each) for each in entry["bbox"])
    window = Window(row, col, num_rows, width)
    borders = np.cumsum(unpack_counts(entry["segmentation"]["counts"]))
    first, end = borders[0::2], borders[1::2]
    first = first[: len(end)]
    # every pixel by its place down the columns of the picture
    lengths = end - first
    begins = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(begins - first, lengths)
    mask = np.zeros((num_rows, width), np.bool_)
    mask[place % height - row, place // height - col] = True
    found = make_object(int(entry["category_id"]) - 1, window, mask, score=float(entry["score"]))
    if found is None:
        raise ValueError("an object without pixels")
    return found
