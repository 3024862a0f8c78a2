"""The boxes of a picture or scene with the classes of a job, in one file of arrays."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from outsize.data.boxes.boxes import Boxes
from outsize.errors import RunError, explain
from outsize.raster import disk

NEUTRAL = -1  # class of a box that is neither learnt nor scored
_BROKEN = (OSError, ValueError, KeyError, EOFError, BadZipFile, NotImplementedError)  # what numpy raises


@dataclass(frozen=True, eq=False)
class SceneBoxes:
    """Boxes, and the number of the class that the job gives to each; those of no class are not among them."""

    boxes: Boxes
    class_ids: NDArray[np.int64]

    def scaled(self, factor: float) -> SceneBoxes:
        """Return the boxes of the picture at another size."""
        return SceneBoxes(self.boxes.scaled(factor, factor), self.class_ids)

    def save(self, target: Path, key: str) -> None:
        """Write the boxes of a scene; `key` says what they were made of."""
        arrays: dict[str, Any] = {each.name: getattr(self.boxes, each.name) for each in fields(Boxes)}
        with disk.disk_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        with disk.replacing(target) as partial, partial.open("wb") as file:
            np.savez(file, **arrays, class_ids=self.class_ids, key=np.array(key))

    @staticmethod
    def load(path: Path) -> SceneBoxes:
        """Read the boxes of a scene."""
        try:
            with np.load(path, allow_pickle=False) as held:
                boxes = Boxes(**{each.name: held[each.name] for each in fields(Boxes)})
                return SceneBoxes(boxes, held["class_ids"])
        except _BROKEN as error:
            remedy = "run `outsize check` again, which makes it anew"
            raise RunError(explain(f"{path} cannot be read", error, "boxes of a scene", remedy)) from error

    @staticmethod
    def are_kept(path: Path, key: str) -> bool:
        """Say whether a file holds the boxes that `key` names."""
        if not path.is_file():
            return False
        try:
            with np.load(path, allow_pickle=False) as held:
                return bool(str(held["key"]) == key)
        except _BROKEN:  # half written by another program, or of another make
            return False


class BoxFiles:
    """Reads boxes of many scenes, each file once; for any number of threads."""

    def __init__(self) -> None:
        self._held: dict[tuple[Path, int], SceneBoxes] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[BoxFiles], tuple[()]]:
        """In another process, files are read anew."""
        return BoxFiles, ()

    def of(self, path: Path, shrink: int = 1) -> SceneBoxes:
        """Return all boxes of a scene that is read at a part of its size."""
        with self._lock:
            if (path, shrink) not in self._held:
                self._held[path, shrink] = SceneBoxes.load(path).scaled(1 / shrink)
            return self._held[path, shrink]
