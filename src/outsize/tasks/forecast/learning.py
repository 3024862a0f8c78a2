"""Probabilities of a run's forecasts: learnt once from windows held back, and kept in the run."""

from __future__ import annotations

from pathlib import Path

from outsize.data.recall import recall_scenes
from outsize.infer.ready import Ready
from outsize.job import load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, as_written, read_json, write_json
from outsize.tasks.forecast.answers import forecast, truth_of
from outsize.tasks.forecast.chance import Chances, chances_from, count_outcomes, fit_chances


def learnt_chances(run: RunFolder, ready: Ready, threshold: float, reporter: Reporter) -> Chances:
    """Return the curves of a run for a threshold; they hold for as long as its weights are the same."""
    path = run.path / "chances.json"
    known = _kept(path)
    for each in known.get(ready.weights_id, ()):
        if each.threshold == threshold:
            return each
    held = read_json(run.split, "train")
    split = "val" if held["val"] else "train"
    scenes = recall_scenes(run.split, split, load_job(run.job).data)
    counts = None
    with reporter.bar("probabilities", len(scenes), "window") as bar:
        for scene in scenes:
            tiling = ready.tiling_of(scene.image)
            found = forecast(ready.model, ready.card, scene.image, tiling, ready.settings)
            seen = count_outcomes(found, truth_of(scene.labels), threshold)
            counts = seen if counts is None else counts + seen
            bar.advance()
    assert counts is not None  # a split without scenes is refused where it is recalled
    chances = fit_chances(counts, threshold)
    kept = [*known.get(ready.weights_id, ()), chances]
    write_json(
        path, {"weights": ready.weights_id, "split": split, "chances": [each.as_dict() for each in kept]}
    )
    return chances


def _kept(path: Path) -> dict[str, list[Chances]]:
    if not path.is_file():
        return {}
    tree = read_json(path, "predict")
    with as_written(path, "predict"):
        return {str(tree["weights"]): [chances_from(each) for each in tree["chances"]]}
