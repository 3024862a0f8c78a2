"""Works through the trials of a study: several at once, each worker one after the other."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outsize.data.feeding import num_cores
from outsize.job import Job, dump_job
from outsize.progress import Bar, Reporter
from outsize.report.tuned import Tuned, outcome_text, value_text
from outsize.runs import write_text
from outsize.tasks import info_of
from outsize.threads import Threads
from outsize.tuning.outcome import job_of, tuned_so_far, write_outcome
from outsize.tuning.space import Space
from outsize.tuning.study import Study, TakenTrial
from outsize.tuning.trial import Ended, run_trial


@dataclass(frozen=True)
class Workers:
    """What all workers of a process share."""

    study: Study
    job: Job
    space: Space
    num_trials: int
    reporter: Reporter
    bar: Bar
    stops: threading.Event

    def until_done(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Take trials until there are none; another worker that fails ends all of this process."""
        try:
            while not self.stops.is_set():
                with self.study.taking(self.num_trials) as taken:
                    if taken is None:
                        return
                    self._train(taken, words, environment)
        except BaseException:
            self.stops.set()
            raise

    def _train(self, taken: TakenTrial, words: Sequence[str], environment: Mapping[str, str]) -> None:
        values = ", ".join(f"{key} {value_text(value)}" for key, value in taken.values.items())
        begins = "goes on" if taken.goes_on else "begins"
        self.reporter.say("trial", f"trial {taken.number} {begins}: {values}", number=taken.number)
        job = job_of(self.job, taken.values, str(taken.run.path))
        write_text(taken.run.job, dump_job(job))
        self._lend_check(taken)
        ended = self._as_before(taken) or run_trial(
            taken.run,
            info_of(job.task).score,
            words,
            environment=environment,
            prunes=partial(self.study.report, taken),
            stops=self.stops,
        )
        if ended.state == "stopped":
            return
        self._note(taken, ended)

    def _note(self, taken: TakenTrial, ended: Ended) -> None:
        self.study.tell(taken, ended.state, ended.score, ended.why)
        with self.study.lock():
            tuned = write_outcome(self.study, self.job, self.space)
            self._tidy(tuned)
        row: dict[str, Any] = next(dict(each) for each in tuned.rows if each["number"] == taken.number)
        score = "" if ended.score is None else f", {tuned.score_name} {ended.score:.4f}"
        text = f"trial {taken.number} {outcome_text(row)}{score}"
        self.reporter.say("trial", text, **row)
        self.bar.advance(1, **({} if tuned.best is None else {"best": float(tuned.best["score"])}))

    def _as_before(self, taken: TakenTrial) -> Ended | None:
        """Return how an equal trial ended: the same values would train to the same bits."""
        for each in tuned_so_far(self.study, self.job, self.space).rows:
            if (
                each["values"] == taken.values
                and each["number"] < taken.number
                and each["seconds"] is not None
            ):
                why = each["why"] or f"as trial {each['number']}"
                return Ended(each["state"], each["score"], why)
        return None

    def _lend_check(self, taken: TakenTrial) -> None:
        """Give a trial what was found when all data was read once: the data of all trials is the same."""
        known = (
            self.study.folder.parent,
            *(self.study.run_of(number).path for number in range(taken.number)),
        )
        for each in known:
            if (each / taken.run.data.name).is_file() and not taken.run.data.exists():
                shutil.copyfile(each / taken.run.data.name, taken.run.data)

    def _tidy(self, tuned: Tuned) -> None:
        """Keep the weights of the best trial alone; whatever it ended with, a trial has nothing half written."""
        best = tuned.best
        for each in tuned.rows:
            if each["state"] in ("running", "waiting"):
                continue
            run = self.study.run_of(each["number"])
            shutil.rmtree(run.labels, ignore_errors=True)
            if best is None or each["number"] != best["number"]:
                shutil.rmtree(run.best.parent, ignore_errors=True)
            else:
                run.state.unlink(missing_ok=True)


def work_through(
    study: Study, job: Job, space: Space, num_trials: int, devices: Sequence[str], reporter: Reporter
) -> None:
    """Train trials until there are so many, one at a time on each device; the first error ends all of them."""
    stops = threading.Event()
    cores = {"OMP_NUM_THREADS": str(max(1, num_cores() // len(devices)))}
    begun = sum(1 for each in study.trials() if each.state.is_finished())
    with (
        reporter.bar("tune", num_trials, "trial", parallel=len(devices)) as bar,
        Threads(len(devices), "tune", "trains trials") as workers,
    ):
        bar.advance(min(begun, num_trials))
        work = Workers(study, job, space, num_trials, reporter, bar, stops)
        futures = [workers.submit(work.until_done, ["--device", each], cores) for each in devices]
        try:
            for each in futures:
                workers.result(each)
        finally:
            stops.set()


def devices_for(device: str, num_workers: int) -> list[str]:
    """Return a device for each worker: all GPUs in turn, unless one is named."""
    if device != "auto" or num_workers == 1:
        return [device] * num_workers
    import torch

    num_gpus = torch.cuda.device_count()
    return [f"cuda:{number % num_gpus}" if num_gpus else "cpu" for number in range(num_workers)]
