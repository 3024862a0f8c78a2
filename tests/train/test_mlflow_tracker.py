"""MLflow beside TensorBoard: the same figures in a folder; skipped where the package is missing, which is one line."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from outsize.errors import JobError, OutputError
from outsize.train import mlflow_tracker
from outsize.train.log import TrainingLog
from outsize.train.mlflow_tracker import MlflowTracker

needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")


def test_a_missing_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_tracker, "find_spec", lambda _: None)
    with pytest.raises(JobError, match=r"pip install 'outsize\[mlflow\]'"):
        MlflowTracker(str(tmp_path), tmp_path / "run", {}, goes_on=False)


@needs_mlflow
def test_the_same_figures_are_in_its_folder_and_a_training_goes_on_in_its_run(tmp_path: Path) -> None:
    import mlflow

    store, run = tmp_path / "mlruns", tmp_path / "run"

    def logged(step: int, goes_on: bool) -> None:
        tracker = MlflowTracker(str(store), run, {"train.lr": "0.1"}, goes_on=goes_on)
        log = TrainingLog(run / "metrics.jsonl", run / "tensorboard", from_step=step, also=[tracker])
        log.line({"kind": "step", "phase": 0, "epoch": 0, "step": step + 10, "lr": 0.5, "step_s": 0.1})
        log.line({"kind": "epoch", "phase": 0, "epoch": 1, "step": step + 12, "mean_iou": 0.25 + step})

    run.mkdir()
    logged(0, False)
    logged(20, True)
    client = mlflow.MlflowClient(store.as_uri())
    [experiment] = [each for each in client.search_experiments() if each.name == "outsize"]
    [found] = client.search_runs([experiment.experiment_id])
    assert found.data.params == {"train.lr": "0.1"}
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "epoch/mean_iou")
    assert [(each.step, each.value) for each in history] == [(12, 0.25), (32, 20.25)]
    assert {each.step for each in client.get_metric_history(found.info.run_id, "step/lr")} == {10, 30}


@needs_mlflow
def test_a_store_that_takes_nothing_is_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match="MLflow cannot log to") as raised:
        MlflowTracker(str(blocked / "mlruns"), tmp_path / "run", {}, goes_on=False)
    assert "\n" not in str(raised.value)
