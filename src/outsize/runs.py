"""Names of the files in a run folder, and how they are written: beside, then renamed."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from outsize.errors import OutputError, RunError, explain, listed
from outsize.files.beside import written_beside
from outsize.files.locks import holding
from outsize.files.ownership import MARK, NONE_GIVEN, Consent, is_marked, mark, others_in, refuse_place
from outsize.files.plain import read_plain_text
from outsize.files.trees import MOST_JSON_BYTES, json_tree, read_json_tree


@dataclass(frozen=True)
class RunFolder:
    """One run: its job, facts, plan, progress, weights and results, each a plain file."""

    path: Path

    @property
    def lock(self) -> Path:
        """Which process works in it, while one does."""
        return self.path / ".outsize.lock"

    @property
    def job(self) -> Path:
        """The job as it was run, defaults included."""
        return self.path / "job.toml"

    @property
    def split(self) -> Path:
        """Which images, and which parts of them, train, validate and test."""
        return self.path / "split.json"

    @property
    def data(self) -> Path:
        """What was found when all data was read once."""
        return self.path / "data.json"

    @property
    def labels(self) -> Path:
        """Rasters that are made: of labels that are polygons, of frames."""
        return self.path / "labels"

    @property
    def facts(self) -> Path:
        """What was measured of machine and model."""
        return self.path / "facts.json"

    @property
    def plan(self) -> Path:
        """What was decided, and why."""
        return self.path / "plan.json"

    @property
    def schedule(self) -> Path:
        """What each rank of a pipeline did when, in one step: predicted and measured."""
        return self.path / "schedule.json"

    @property
    def init(self) -> Path:
        """What was kept of the weights of another run."""
        return self.path / "init.json"

    @property
    def metrics(self) -> Path:
        """One JSON line per logged step and per epoch."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """TensorBoard's folder."""
        return self.path / "tensorboard"

    @property
    def accounts(self) -> Path:
        """One JSON line for each time that a verb ran: how long, and what it did."""
        return self.path / "accounts.jsonl"

    @property
    def best(self) -> Path:
        """Weights and card of the best validation."""
        return self.path / "checkpoints" / "best.safetensors"

    @property
    def last(self) -> Path:
        """Weights and card of the last epoch."""
        return self.path / "checkpoints" / "last.safetensors"

    @property
    def state(self) -> Path:
        """What else a resumed training needs: optimizer, position, weights at that moment."""
        return self.path / "checkpoints" / "state.safetensors"

    @property
    def is_trained(self) -> bool:
        """Whether a training left something that it would be a pity to lose."""
        return any(each.exists() for each in (self.state, self.best, self.last))

    @property
    def predictions(self) -> Path:
        """Maps, polygons and `predict.json`."""
        return self.path / "predictions"

    @property
    def scores(self) -> Path:
        """Figures of `evaluate`."""
        return self.path / "scores.json"

    @property
    def verify(self) -> Path:
        """Figures of `verify`."""
        return self.path / "verify.json"

    @property
    def picture(self) -> Path:
        """Input, truth and prediction side by side."""
        return self.path / "picture.png"

    @property
    def pictures(self) -> Path:
        """Strips of the best, median and worst places."""
        return self.path / "pictures"

    @property
    def comparison(self) -> Path:
        """Figures of `evaluate` with another run."""
        return self.path / "compare.json"

    @property
    def bench(self) -> Path:
        """Measurements and pictures of `bench`, one of each for every kind."""
        return self.path / "bench"

    @property
    def tune(self) -> Path:
        """Trials of `tune`, each a run of its own, their table and the best job."""
        return self.path / "tune"

    @property
    def report(self) -> Path:
        """The page of `report`."""
        return self.path / "report.html"


def open_run(path: Path) -> RunFolder:
    """Return the run at `path`, which must hold a job."""
    run = RunFolder(path)
    if not run.job.is_file():
        remedy = "name a folder that `outsize train` wrote"
        raise RunError(explain(f"{path} is no run folder", "no job.toml in it", "a run", remedy))
    return run


# two files by which a run is known that was made before folders were marked
_SIGNS = (
    {"facts.json", "plan.json"},
    {"split.json", "data.json"},
    {"job.toml", "metrics.jsonl"},
    {"job.toml", "checkpoints"},
    {"job.toml", "bench"},
)
_MADE_LABELS = re.compile(r".+-[0-9a-f]{8}\.(png|tif|npz)|\d{8}T\d{4}Z(-back)?(-truth)?\.vrt")


def is_own(run: RunFolder) -> bool:
    """Say whether outsize made what is in a run folder."""
    names = set(others_in(run.path))
    if is_marked(run.path) or any(signs <= names for signs in _SIGNS):
        return True
    # of a check that was killed there are labels alone
    return names == {"labels"} and all(map(_MADE_LABELS.fullmatch, others_in(run.labels)))


def refuse_foreign(
    run: RunFolder,
    *,
    overwrite: bool = False,
    another: str = "set another `run` (--set run=runs/NAME)",
    more: str = "train with --overwrite",
) -> None:
    """Refuse a run folder that holds what outsize did not write, or that no run can have for itself.

    `another` and `more` say how to choose another folder, and how to write into this one all the same.
    """
    refuse_place(run.path, "the run folder", another)
    found = others_in(run.path)
    if found and not overwrite and not is_own(run):
        need = "a new or empty folder, or one that outsize made"
        remedy = f"{another}, or {more} to write over what is in the way"
        raise OutputError(explain(f"run folder {run.path} is not outsize's own", listed(found), need, remedy))


@contextmanager
def working_in(
    run: RunFolder, verb: str, consent: Consent = NONE_GIVEN, tell: Callable[[str], object] = lambda _: None
) -> Iterator[None]:
    """Hold a run folder alone, marked as outsize's own, while the block fills it; leave none that stays empty."""
    refuse_foreign(run, overwrite=consent.overwrite)
    with leaving_no_empty_folder(run.path), ExitStack() as stack:
        with output_errors(run.lock):
            run.path.mkdir(parents=True, exist_ok=True)
            lock = holding(run.lock, f"run {run.path}", verb, take_over=consent.take_over, tell=tell)
            stack.enter_context(lock)
            is_new = mark(run.path)
        try:
            yield
        except BaseException:
            if is_new and {each.name for each in run.path.iterdir()} <= {MARK, run.lock.name}:
                (run.path / MARK).unlink()
            raise


@contextmanager
def leaving_no_empty_folder(folder: Path) -> Iterator[None]:
    """Where the block fails, remove `folder` and its parents again if they are new and still empty."""
    new = [each for each in (folder, *folder.parents) if not _is_there(each)]
    try:
        yield
    except BaseException:
        with suppress(OSError):  # something is in it, or it never came to be
            for each in new:
                each.rmdir()
        raise


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


@contextmanager
def output_errors(target: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write `target` into an OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(explain(f"cannot write {target}", *_cause(error, target))) from error


def _cause(error: OSError, target: Path) -> tuple[str, str, str]:
    """Return what was found, needed and is to be done when `target` cannot be written."""
    found = error.strerror or str(error)
    in_the_way = next((each for each in target.parents if _is_there(each) and not each.is_dir()), None)
    if in_the_way is not None:
        need = "a folder of that name, or none yet"
        return f"a file at {in_the_way}", need, "remove or rename it, or choose another folder"
    if error.errno == errno.EISDIR:
        return f"a folder at {target}", "a file, or none yet", "remove or rename it, or choose another name"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "choose a folder that you may write in, or have its permissions changed"
        return found, "permission to write there", remedy
    return found, "a writable folder with free space", "free space or choose another folder"


@contextmanager
def write_beside(target: Path) -> Iterator[Path]:
    """Give a temporary name beside `target`, renamed to it when the block ends well, else removed."""
    with leaving_no_empty_folder(target.parent), output_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_beside(target) as temporary:
            yield temporary


def write_text(target: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with write_beside(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(target, json.dumps(value, indent=2, default=str) + "\n")


def read_json(path: Path, made_by: str) -> dict[str, Any]:
    """Read a JSON file of a run, always a table; where it is missing, name the command that makes it."""
    try:
        tree = read_json_tree(path)
    except FileNotFoundError:
        need, remedy = "a finished earlier step", f"run `outsize {made_by}` first"
        raise RunError(explain(f"{path} is missing", "nothing", need, remedy)) from None
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or str(error)
        remedy = f"run `outsize {made_by}` again"
        raise RunError(explain(f"{path} is broken", found, "JSON", remedy)) from error
    with as_written(path, made_by):
        if not isinstance(tree, dict):
            raise TypeError(f"a JSON {type(tree).__name__}")
    return cast(dict[str, Any], tree)


def read_json_lines(path: Path, made_by: str) -> list[dict[str, Any]]:
    """Read a file of JSON lines, each a table; a line without its end was being written when the run was killed."""
    with as_written(path, made_by):
        try:
            lines = read_plain_text(path, MOST_JSON_BYTES).splitlines(keepends=True)
        except OSError as error:
            raise ValueError(error.strerror) from error
        # a line without its end was being written when the run was killed
        found = [json_tree(line) for line in lines if line.endswith("\n") and line.strip()]
        for each in found:
            if not isinstance(each, dict):
                raise TypeError(f"a JSON {type(each).__name__}")
    return found


@contextmanager
def as_written(path: Path, made_by: str) -> Iterator[None]:
    """Say which file of a run is not as outsize wrote it: parts that the block takes from it are missing, or others.

    What no content of a file can cause is a bug of ours, and stays one.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        if _is_bug(error):
            raise
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        need, remedy = f"what `outsize {made_by}` writes", f"run `outsize {made_by}` again"
        raise RunError(explain(f"{path} cannot be understood", found, need, remedy)) from error


def _is_bug(error: Exception) -> bool:
    """Say whether the code is wrong, and not what it read: an attribute of what no file holds, a call misspelt."""
    if isinstance(error, AttributeError):
        return not isinstance(error.obj, dict | list | str | int | float | None)
    # the fields of an `__init__` are those of the file
    is_call = isinstance(error, TypeError) and re.search(r"(positional|keyword) argument", str(error))
    return bool(is_call) and "__init__" not in str(error)
