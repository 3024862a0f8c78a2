"""Opens the scenes of a run's split again, as split.json has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from outsize.data.scenes import LabelledScene, open_image
from outsize.errors import RunError, explain
from outsize.job import DataSection
from outsize.raster.reading import SceneInfo, describe
from outsize.runs import as_written, read_json
from outsize.tiles.window import Window

SPLITS = ("train", "val", "test")


def recall_images(path: Path, split: str) -> list[Path]:
    """Return the images of a split, each once."""
    entries = _entries(path, split)
    with as_written(path, "train"):
        return list(dict.fromkeys(Path(entry["image"]) for entry in entries))


def recall_scenes(path: Path, split: str, data: DataSection) -> tuple[LabelledScene, ...]:
    """Describe the images of a split with their labels and areas."""
    entries = _entries(path, split)
    with as_written(path, "train"):
        images = [(Path(entry["image"]), str(entry["labels"])) for entry in entries]
        held = [{key: Path(entry[key]) for key in ("objects", "boxes") if key in entry} for entry in entries]
    scenes = []
    for (image, labels), entry, files in zip(images, entries, held, strict=True):
        info = open_image(image, data)
        marked = describe(labels, allow_references=data.allow_references)
        with as_written(path, "train"):
            areas = tuple(_inside(Window(*area), info) for area in entry["areas"])
            whole = entry.get("picture_px")
            picture_px = None if whole is None else _picture_px(whole, info)
        marked = marked.shrunk(data.shrink, nearest=True)
        scene = LabelledScene(info, marked, areas, files.get("objects"), files.get("boxes"), picture_px)
        scenes.append(replace(scene, is_numbers=entry.get("is_numbers") is True))
    return tuple(scenes)


def recall_picture_px(path: Path) -> dict[Path, tuple[int, int]]:
    """Return the size of the pictures in each image that holds pictures with one class each."""
    held = read_json(path, "train")
    with as_written(path, "train"):
        entries = [each for split in SPLITS for each in held[split] if "picture_px" in each]
        return {
            Path(each["image"]): (int(each["picture_px"][0]), int(each["picture_px"][1])) for each in entries
        }


def _inside(area: Window, info: SceneInfo) -> Window:
    sides = (area.row, area.col, area.height, area.width)
    if any(type(side) is not int or side < 0 for side in sides) or area.intersect(info.window) != area:
        raise ValueError(f"an area {sides} outside of {info.path.name}")
    return area


def _picture_px(sides: list[int], info: SceneInfo) -> tuple[int, int]:
    height, width = sides
    if (
        any(type(side) is not int or side < 1 for side in sides)
        or info.height % height
        or width != info.width
    ):
        raise ValueError(f"pictures of {sides} px in {info.path.name}")
    return height, width


def _entries(path: Path, split: str) -> list[dict[str, Any]]:
    if split not in SPLITS:
        need, remedy = f"one of {', '.join(SPLITS)}", "choose with --split"
        raise RunError(explain(f"no such split in {path}", repr(split), need, remedy))
    held = read_json(path, "train")
    with as_written(path, "train"):
        entries: list[dict[str, Any]] = held[split]
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise TypeError(f"{split} is no list of scenes")
    if not entries:
        need, remedy = "at least one scene", "choose another --split, or share some out in data.split"
        raise RunError(explain(f"nothing in split {split} of {path}", "no scene", need, remedy))
    return entries
