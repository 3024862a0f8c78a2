"""Optuna's study of a job, shared by all its workers, whoever started them: one lock, one trial at a time taken.

RUN/tune/study.log         the journal, unless a database is named
        /trials/0007/      a trial: a run of its own
        /trials.json       all trials, and what mattered
        /best.toml         the job of the best one
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from outsize.errors import InUseError, JobError, RunError, explain
from outsize.files.locks import holder_of, holding
from outsize.files.ownership import mark
from outsize.job import Job
from outsize.runs import RunFolder, output_errors
from outsize.tuning.space import Space, Values, distributions, values_of

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

Answer = TypeVar("Answer")

_BEFORE_PRUNING = 4  # trials that are trained to the end before any is pruned
_WHY, _JOB = "why", "job"  # attributes: of a trial, why it ended early; of a study, the job it is of
_SQLITE_WAIT_S = 60


@dataclass(frozen=True)
class TakenTrial:
    """A trial that this worker has, and nobody else."""

    number: int
    run: RunFolder
    values: Values
    trial: optuna.trial.Trial
    goes_on: bool  # with what a worker that is over had begun


class Study:
    """The study of one job; every call asks the storage once, with patience."""

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        space: Space,
        asked: Callable[[Callable[[], Any]], Any],
        seed: int,
    ) -> None:
        self._study, self._space, self._asked, self._seed = study, space, asked, seed
        self.folder = folder

    def lock(self) -> Any:
        """Hold what all workers change: trials to be taken, the table, the best job."""
        return _locked(self.folder)

    @contextmanager
    def taking(self, num_trials: int) -> Iterator[TakenTrial | None]:
        """Take the next trial for the block, first one that nobody goes on with; None where all are taken."""
        with ExitStack() as stack:
            with self.lock():
                taken = self._left(stack) or self._new(stack, num_trials)
            yield taken

    def report(self, taken: TakenTrial, epoch: int, score: float) -> bool:
        """Tell the score of an epoch, and return whether the trial is worse than half of those before it."""

        def tell() -> bool:
            taken.trial.report(score, epoch)
            return taken.trial.should_prune()

        return bool(self._asked(tell))

    def tell(self, taken: TakenTrial, state: str, score: float | None, why: str = "") -> None:
        """Tell how a trial ended: "done" with its score, "pruned" or "failed" and why."""
        from optuna.trial import TrialState

        states = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}

        def tell() -> None:
            if why:
                taken.trial.set_user_attr(_WHY, why)
            self._study.tell(taken.trial, score if state == "done" else None, state=states[state])

        self._asked(tell)

    def trials(self) -> list[FrozenTrial]:
        """Return all trials as they are now."""
        return list(self._asked(lambda: self._study.get_trials(deepcopy=False)))

    def importance(self) -> dict[str, float]:
        """Return the share that each key has in the differences of scores; empty where too few trials tell."""
        from optuna.importance import get_param_importances
        from optuna.trial import TrialState

        done = [each for each in self.trials() if each.state is TrialState.COMPLETE]
        if len({each.value for each in done}) < _BEFORE_PRUNING:
            return {}
        found: dict[str, float] = self._asked(lambda: get_param_importances(self._study))
        return {key: round(share, 4) for key, share in found.items()}

    def _left(self, stack: ExitStack) -> TakenTrial | None:
        """Take a trial whose worker is over, with what it had trained."""
        from optuna.trial import Trial, TrialState

        for each in self.trials():
            run = self.run_of(each.number)
            if each.state is not TrialState.RUNNING or holder_of(run.lock) is not None:
                continue
            with ExitStack() as held:
                try:
                    held.enter_context(self._held(each.number))
                except InUseError:
                    continue
                if self.trials()[each.number].state is not TrialState.RUNNING:
                    continue  # its worker has told how it ended, and let go of it, since we looked
                trial = Trial(self._study, each._trial_id)
                if each.params.keys() != self._space.keys():  # its worker was over while it was drawn
                    self._asked(partial(self._study.tell, trial, state=TrialState.FAIL))
                    continue
                stack.push(held.pop_all())
                return TakenTrial(each.number, run, values_of(each.params, self._space), trial, goes_on=True)
        return None

    def _new(self, stack: ExitStack, num_trials: int) -> TakenTrial | None:
        """Draw a new trial; the sampler's chance is that of its number, whoever draws it."""
        from optuna.samplers import TPESampler

        number = len(self.trials())
        if number >= num_trials:
            return None
        self._study.sampler = TPESampler(seed=self._seed + number, constant_liar=True)
        trial = self._asked(lambda: self._study.ask(distributions(self._space)))
        stack.enter_context(self._held(trial.number))
        values = values_of(trial.params, self._space)
        return TakenTrial(trial.number, self.run_of(trial.number), values, trial, goes_on=False)

    def run_of(self, number: int) -> RunFolder:
        """Return the run of a trial."""
        return RunFolder(self.folder / "trials" / f"{number:04}")

    def _held(self, number: int) -> Any:
        """Hold a trial, so that no other worker takes it for one that was left."""
        folder = self.run_of(number).path
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            mark(folder)
        return holding(folder / ".trial.lock", f"trial {folder}", "tune")


def open_study(job: Job, space: Space, run: RunFolder, storage: str | None) -> Study:
    """Open the study of a job or begin it, under a lock: two that begin one at once would end one another."""
    if find_spec("optuna") is None:
        raise JobError(explain("optuna is missing", "nothing", "optuna", "pip install 'outsize[tune]'"))
    import optuna

    from outsize.tuning.patience import Patience, shown_address

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    # of what is experimental, and of epochs that a worker before has reported
    warnings.filterwarnings("ignore", module="optuna")
    folder = run.tune
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    asked: Callable[[Callable[[], Any]], Any] = _at_once
    if storage is not None:
        asked = Patience(shown_address(storage)).asked
    pruner = optuna.pruners.MedianPruner(n_startup_trials=_BEFORE_PRUNING)
    how: dict[str, Any] = {"direction": "maximize", "load_if_exists": True, "pruner": pruner}

    def begin() -> optuna.Study:
        study = optuna.create_study(
            storage=_storage(folder, storage), study_name=str(run.path.resolve()), **how
        )
        mine = _digest(job)
        known = study.user_attrs.get(_JOB)
        if known is None:
            study.set_user_attr(_JOB, mine)
        elif known != mine:
            found, need = "another job, or other ranges", "the job that its trials are of"
            remedy = "undo the change, or begin another study (--set run=runs/NAME)"
            raise RunError(explain(f"the study in {folder} is of another job", found, need, remedy))
        return study

    with _locked(folder):
        return Study(asked(begin), folder, space, asked, job.seed)


def _storage(folder: Path, address: str | None) -> Any:
    from optuna.storages import JournalStorage, RDBStorage

    from outsize.tuning.journal import Journal

    if address is None:
        path = folder / "study.log"
        with output_errors(path):
            path.touch()
        return JournalStorage(Journal(path))
    how = {"connect_args": {"timeout": _SQLITE_WAIT_S}} if address.startswith("sqlite") else {}
    return RDBStorage(address, engine_kwargs=how)


def _digest(job: Job) -> str:
    """Name what trials have in common, so that scores are of one job."""
    tree = job.model_dump(mode="json", include={"task", "seed", "data", "model", "train", "tune", "limits"})
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _locked(folder: Path) -> Any:
    return holding(folder / ".study.lock", f"study {folder}", "tune", wait=True)


def _at_once(ask: Callable[[], Answer]) -> Answer:
    return ask()
