"""Miniatures of datasets of boxes, and jobs that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from outsize.data.boxes import SceneBoxes
from outsize.data.formats.layout import Layout
from outsize.job import DataSection
from outsize.known.tables import filled_in

SIZE = (40, 60)  # height, width


def picture(path: Path, size: tuple[int, int] = SIZE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), 100, np.uint8)).save(path)
    return path


def file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def boxed(kind: str, root: Path, *names: str, **keys: Any) -> DataSection:
    """Return the data section of a job of boxes; classes are named and numbered from 1."""
    classes = [{"name": name, "value": number} for number, name in enumerate(names, start=1)]
    given = {"classes": classes} if names else {}
    tree = filled_in({"boxes": True, "format": kind, "root": str(root), **given, **keys})
    return DataSection.model_validate(tree)


def opened(layout: Layout, path: Path, cache: Path) -> SceneBoxes:
    """Open a picture of a layout, and return its boxes."""
    assert not layout.faults, layout.faults
    assert layout.open is not None
    scene = layout.open(path, cache)
    assert scene.boxes is not None
    return SceneBoxes.load(scene.boxes)
