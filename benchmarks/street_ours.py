"""A job made ready as `outsize train` does it, for `street_speed.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from outsize.data.batch import Batch
from outsize.data.inputs.normalised import normalise
from outsize.data.sampling.draw import SampleCounts
from outsize.job import Job
from outsize.planning.jobs.preparing import prepare
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.session.fitting import recipe_of
from outsize.session.hosting import place
from outsize.session.samples import batch_maker, open_feed, open_samples
from outsize.strategies.compose import compose
from outsize.tasks import task_of
from outsize.train.feed import BatchMaker
from outsize.train.log import TrainingLog
from outsize.train.loop import Hooks, fit
from outsize.train.optimizer import make_optimizer


class Warnings(Reporter):
    """Says nothing but warnings."""

    def say(self, event: str, text: str, **_: object) -> None:
        """Print a warning."""
        if event == "warning":
            print(text, file=sys.stderr, flush=True)


def _long(job: Job) -> Job:
    """Return the job of a training of days: what pays in it only is tried, too."""
    return job.model_copy(update={"train": job.train.model_copy(update={"epochs": 1000})})


class Ours:
    """A job made ready as `outsize train` does it."""

    def __init__(self, job: Job, options: argparse.Namespace) -> None:
        self._job, reporter = job, Warnings()
        self._prepared = prepare(_long(job), options.device, reporter)
        self.plan, self.model = self._prepared.train_plan, self._prepared.model
        self.statistics = self._prepared.card.statistics
        self._samples = open_samples(job, self._prepared, reporter)
        place(self.model, self.plan, self._prepared.device, bf16=self._prepared.where.bf16)
        terms = task_of(job.task).make_loss_terms(job.train.loss, self._prepared.card.statistics, None)
        self._step = compose(self.model, terms, self.plan, bf16=self._prepared.where.bf16)
        self._recipe = recipe_of(job, self._samples.windows)
        self.make: BatchMaker = batch_maker(job, self._prepared, self._samples, self._recipe)
        seen = SampleCounts([each.name for each in job.data.classes])
        self.batch = self.make((0, 0))[0].to(self._prepared.device)
        self._feed = open_feed(job, self._prepared, self.make, seen, self._recipe, reporter)
        (folder := RunFolder(Path(job.run))).path.mkdir(parents=True, exist_ok=True)
        self._log = TrainingLog(folder.metrics, folder.events, from_step=0)

    def on_device(self) -> Callable[[], object]:
        """Return what trains on a batch that is on the device."""
        self.model.train()
        optimizer = make_optimizer(
            self.model,
            "adamw",
            lr=self._job.train.lr,
            momentum=0.9,
            weight_decay=self._job.train.weight_decay,
        )

        def run() -> None:
            self._step(self.batch, last=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return run

    def fit(self, between: Callable[[], None], log: Callable[[Mapping[str, Any]], None]) -> None:
        """Train all epochs from files by the package's own loop; `between` is called before each of them."""

        def batches(epoch: int, first_step: int) -> Iterator[Batch]:
            between()
            yield from self._feed.batches(epoch, first_step)

        def both(record: Mapping[str, Any]) -> None:
            log(record)
            self._log.line(record)

        hooks = Hooks(
            batches=batches,
            validate=lambda _: {"mean_iou": 0.0},
            log=both,
            save_state=lambda *_: None,
            save_epoch=lambda *_: None,
            copied_s=self._feed.copied_s,
        )
        fit(self.model, self._step, self._recipe, hooks)

    def normalised(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch as a plain script has it: normalised float32, and labels as long."""
        images = normalise(self.batch.images, self.batch.valid, self._prepared.card.statistics)
        return images.contiguous(), self.batch.targets.labels.long()

    def close(self) -> None:
        """End the workers."""
        self._feed.close()
        self._samples.windows.close()
