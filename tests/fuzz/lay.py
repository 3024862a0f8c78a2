"""Writes sound files of all subjects: `python -m tests.fuzz.lay FOLDER KIND...`, in a process of its own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.fuzz.subjects import SUBJECTS


def lay(folder: Path, kinds: list[str]) -> None:
    """Write each kind into a folder of its name; runs are trained once."""
    trained = folder / "run"
    for kind in sorted(kinds, key=lambda each: each != "run"):
        if kind == "checkpoint" and trained.is_dir():
            shutil.copytree(trained, folder / kind)
            continue
        (folder / kind).mkdir(parents=True)
        SUBJECTS[kind].lay(folder / kind)
        if kind == "vector" and trained.is_dir():  # for areas of interest
            shutil.copytree(trained / "run", folder / kind / "run")


if __name__ == "__main__":
    lay(Path(sys.argv[1]), sys.argv[2:])
