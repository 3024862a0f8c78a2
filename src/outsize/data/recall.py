"""Opens the scenes of a run's split again, as split.json has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.data.scenes import LabelledScene, open_image
from outsize.errors import RunError, explain
from outsize.job import DataSection
from outsize.raster.read import describe
from outsize.raster.scene import shrunk
from outsize.runs import read_json
from outsize.tiles.window import Window

SPLITS = ("train", "val", "test")


def recall_images(path: Path, split: str) -> list[Path]:
    """Return the images of a split, each once."""
    return list(dict.fromkeys(Path(entry["image"]) for entry in _entries(path, split)))


def recall_scenes(path: Path, split: str, data: DataSection) -> tuple[LabelledScene, ...]:
    """Describe the images of a split with their labels and areas."""
    return tuple(
        LabelledScene(
            open_image(Path(entry["image"]), data),
            shrunk(
                describe(entry["labels"], allow_references=data.allow_references), data.shrink, nearest=True
            ),
            tuple(Window(*area) for area in entry["areas"]),
            Path(entry["objects"]) if "objects" in entry else None,
        )
        for entry in _entries(path, split)
    )


def _entries(path: Path, split: str) -> list[dict[str, Any]]:
    if split not in SPLITS:
        need, remedy = f"one of {', '.join(SPLITS)}", "choose with --split"
        raise RunError(explain(f"no such split in {path}", repr(split), need, remedy))
    entries: list[dict[str, Any]] = read_json(path, "train")[split]
    if not entries:
        need, remedy = "at least one scene", "choose another --split, or share some out in data.split"
        raise RunError(explain(f"nothing in split {split} of {path}", "no scene", need, remedy))
    return entries
