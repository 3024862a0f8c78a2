"""The files of predicted objects or boxes that scores are counted from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outsize.data.scenes import LabelledScene
from outsize.errors import RunError, explain
from outsize.infer.ledger import file_beside, read_ledger
from outsize.runs import RunFolder


def results_of(
    run: RunFolder, scenes: Sequence[LabelledScene], named: str, what: str
) -> list[tuple[Path, float]]:
    """Return the file of each scene, by its name in the ledger, and the score that those on the map have at least."""
    ledger, files = read_ledger(run.predictions), []
    for scene in scenes:
        path = scene.image.path
        entry = ledger.get(str(path.resolve()), {})
        known = named in entry and "min_score" in entry
        results = file_beside(run.predictions, entry[named]) if known else None
        if results is None:
            remedy = f"run `outsize predict {run.path} {path}` first"
            found = f"none in {run.predictions}"
            raise RunError(explain(f"no {what} of {path.name}", found, "a predicted scene", remedy))
        files.append((results, float(entry["min_score"])))
    return files
