"""The pieces of a job's preparation: of scenes, or of frames."""

from __future__ import annotations

from pathlib import Path

from outsize.data.raw.frames import frame_pieces
from outsize.data.raw.scenes import scene_pieces
from outsize.errors import JobError, explain
from outsize.job import DataSection, PrepareSection
from outsize.prepare.piece import Piece


def raw_pieces(section: PrepareSection, data: DataSection, folder: Path, version: str) -> list[Piece]:
    """Return what is to be made of the raw files that a section names, relative to `folder`."""
    if bool(section.images) == bool(section.frames):
        found = "both" if section.images else "neither"
        need, remedy = "prepare.images or prepare.frames", "name raw files one way"
        raise JobError(explain("it is not clear what to prepare", found, need, remedy))
    if section.images:
        return scene_pieces(section, data, folder, version)
    return frame_pieces(section, data.frames, folder, version)
