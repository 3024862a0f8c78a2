"""The boxes of a picture or scene with the classes of a job, in one file of arrays."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.boxes.boxes import Boxes
from outsize.data.made import read_arrays, write_arrays

NEUTRAL = -1  # class of a box that is neither learnt nor scored


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
        arrays = {each.name: getattr(self.boxes, each.name) for each in fields(Boxes)}
        write_arrays(target, {**arrays, "class_ids": self.class_ids}, key)

    @staticmethod
    def load(path: Path) -> SceneBoxes:
        """Read the boxes of a scene."""
        names = [each.name for each in fields(Boxes)]
        held = read_arrays(path, [*names, "class_ids"], "boxes")
        return SceneBoxes(Boxes(**{name: held[name] for name in names}), held["class_ids"])


class BoxFiles:
    """Reads boxes of many scenes, each file once; for any number of threads."""

    def __init__(self) -> None:
        self._held: dict[tuple[Path, int], SceneBoxes] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[BoxFiles], tuple[()]]:
        """In another process, files are read again."""
        return BoxFiles, ()

    def of(self, path: Path, shrink: int = 1) -> SceneBoxes:
        """Return all boxes of a scene that is read at a part of its size."""
        with self._lock:
            if (path, shrink) not in self._held:
                self._held[path, shrink] = SceneBoxes.load(path).scaled(1 / shrink)
            return self._held[path, shrink]
