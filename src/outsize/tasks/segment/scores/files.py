"""The files of predicted maps that scores are counted from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outsize.data.scenes import LabelledScene
from outsize.errors import RunError, explain
from outsize.infer.ledger import file_beside, read_ledger
from outsize.runs import RunFolder


@dataclass(frozen=True)
class MapFiles:
    """What a prediction left of one scene."""

    classes: Path
    confidence: Path | None = None
    unanswered_px: int = 0  # valid pixels of the scene for which the model had no answer: nodata in the map


def files_of(run: RunFolder, scenes: Sequence[LabelledScene]) -> list[MapFiles]:
    """Return the map of each scene that the run has predicted; all of them must be there."""
    ledger, files = read_ledger(run.predictions), []
    for scene in scenes:
        path = scene.image.path
        entry = ledger.get(str(path.resolve()))
        classes = file_beside(run.predictions, entry["map"]) if entry else None
        if entry is None or classes is None:
            remedy = f"run `outsize predict {run.path} {path}` first"
            found = f"none in {run.predictions}"
            raise RunError(explain(f"no map of {path.name}", found, "a predicted scene", remedy))
        confidence = file_beside(run.predictions, entry["confidence"]) if "confidence" in entry else None
        files.append(MapFiles(classes, confidence, entry.get("unanswered_px", 0)))
    return files
