"""Logs a training's figures with MLflow, too, in the store that the job names; a folder needs no server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outsize.errors import JobError, OutputError, explain, first_line
from outsize.job import Job

_EXPERIMENT, _RUN = "outsize", "outsize.run"
_MOST_CHARS = 500  # of a parameter


class MlflowTracker:
    """A run of MLflow for a run of ours; a training that goes on goes on with it."""

    def __init__(self, store: str, run: Path, params: Mapping[str, str], *, goes_on: bool) -> None:
        """Find or begin the run; `store` is a folder or an address."""
        if find_spec("mlflow") is None:
            need, remedy = (
                "mlflow-skinny or mlflow",
                "pip install 'outsize[mlflow]', or leave out train.mlflow",
            )
            raise JobError(explain("train.mlflow asks for MLflow", "no such package", need, remedy))
        # MLflow asks for a word of consent before it writes to a folder (3.17), and reports its use unless told not to
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow

        self._store = store
        address = store if "://" in store or store.startswith("file:") else Path(store).resolve().as_uri()
        with self._errors():
            self._client = mlflow.MlflowClient(tracking_uri=address)
            known = self._client.get_experiment_by_name(_EXPERIMENT)
            experiment = known.experiment_id if known else self._client.create_experiment(_EXPERIMENT)
            name = str(run.resolve())
            self._id = self._begun(experiment, name) if goes_on else None
            if self._id is None:
                begun = self._client.create_run(experiment, run_name=run.name, tags={_RUN: name})
                self._id = begun.info.run_id
                given = [mlflow.entities.Param(key, value) for key, value in params.items()]
                self._client.log_batch(self._id, params=given[:100])

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log named numbers at a step."""
        from mlflow.entities import Metric

        now_ms = int(1000 * time.time())
        metrics = [Metric(name, value, now_ms, step) for name, value in scalars.items()]
        with self._errors():
            for first in range(0, len(metrics), 1000):  # the most that it takes at once
                self._client.log_batch(self._id, metrics=metrics[first : first + 1000])
            if any(name.startswith("epoch/") for name in scalars):
                self._client.set_terminated(self._id)  # as of now: another epoch may follow

    def _begun(self, experiment: str, name: str) -> str | None:
        quoted = name.replace("'", "")
        found = self._client.search_runs([experiment], f"tags.`{_RUN}` = '{quoted}'", max_results=1)
        return found[0].info.run_id if found else None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Say in one line that the store does not take what is logged."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            need, remedy = "a folder with room, or a server that answers", "correct train.mlflow and --resume"
            raise OutputError(
                explain(f"MLflow cannot log to {self._store}", first_line(error), need, remedy)
            ) from error


def params_of(job: Job) -> dict[str, str]:
    """Return what a tracker tells trainings apart by: the keys of [model] and [train]."""
    tree: dict[str, Any] = job.model_dump(mode="json", include={"model", "train", "seed", "task"})
    found = {"task": str(tree["task"]), "seed": str(tree["seed"])}
    for section in ("model", "train"):
        found |= {f"{section}.{key}": str(value)[:_MOST_CHARS] for key, value in tree[section].items()}
    return found
