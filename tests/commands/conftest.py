"""The command line as a user meets it: a process with its exit code, what it printed, and what it left behind."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import pytest

from outsize import cli
from outsize.planning.jobs import preparing

_RECALL = preparing.recall  # which the tests of other rooms do without


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def refused(self, *parts: str) -> str:
        """Assert a one-line refusal that names all `parts`, and return it."""
        lines = self.err.splitlines()
        assert self.code == 2, (self.code, self.err, self.out)
        assert len(lines) == 1, self.err
        assert lines[0].startswith("outsize: ")
        assert ": found " in lines[0]
        assert ", needed " in lines[0]
        assert "; " in lines[0].partition(", needed ")[2]
        for part in parts:
            assert part in lines[0], (part, lines[0])
        return lines[0]


Run = Callable[..., Outcome]


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Run a command line in a process of its own; keywords are those of forker.py."""
    command = [sys.executable, "-m", "tests.commands.forker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], text=True, **pipes) as forker:
        assert forker.stdin is not None
        assert forker.stdout is not None

        def run_one(*args: str | Path, **how: object) -> Outcome:
            request = {"args": [str(each) for each in args], **how}
            forker.stdin.write(json.dumps(request) + "\n")
            forker.stdin.flush()
            return Outcome(*json.loads(forker.stdout.readline()))

        yield run_one
        forker.stdin.close()


@contextmanager
def _caught(name: str, printed: dict[str, str]) -> Iterator[None]:
    """Note what is printed to "stdout" or "stderr" in the block, also by libraries that know no Python."""
    before: TextIO = getattr(sys, name)
    before.flush()
    number = {"stdout": 1, "stderr": 2}[name]
    kept = os.dup(number)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), number)
        setattr(sys, name, file)
        try:
            yield
        finally:
            setattr(sys, name, before)
            os.dup2(kept, number)
            os.close(kept)
            file.flush()
            file.seek(0)
            printed[name] = file.read()


@pytest.fixture(scope="session")
def run_here() -> Run:
    """Run a command line as `run` does, but in this process: much of what a verb takes is done for the first alone."""

    def run_one(*args: str | Path) -> Outcome:
        printed: dict[str, str] = {}
        code: Any = 0
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(preparing, "recall", _RECALL))
            stack.enter_context(mock.patch.object(sys, "argv", ["outsize", *map(str, args)]))
            stack.enter_context(mock.patch.dict(os.environ))
            # what a library logs must be seen as a user would see it, not by pytest
            stack.enter_context(mock.patch.object(logging.getLogger(), "handlers", []))
            for name in ("stdout", "stderr"):
                stack.enter_context(_caught(name, printed))
            try:
                cli.main()
            except SystemExit as ended:
                code = ended.code
            except BaseException:  # noqa: BLE001 (what a user would see as a traceback)
                sys.excepthook(*sys.exc_info())
                code = 1
        return Outcome(code or 0, printed["stdout"], printed["stderr"])

    return run_one


def contents(folder: Path) -> dict[str, str]:
    """Everything under a folder: names, and a digest of each file but accounts, which a verb that fails has too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
        if path.name != "accounts.jsonl"
    }


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Call it when everything is laid out: nothing in the test's folder may differ at its end.

    Accounts may: a verb that was begun in a run and refused has taken its time.
    """

    def results() -> dict[str, str]:
        return {
            name: text for name, text in contents(tmp_path).items() if not name.endswith("accounts.jsonl")
        }

    before: dict[str, str] = {}
    yield lambda: before.update(results())
    assert before, "never called"
    assert results() == before


@pytest.fixture
def copied_run(tmp_path: Path, trained_run: Path) -> Path:
    """A trained run that the test may harm."""
    return Path(shutil.copytree(trained_run, tmp_path / "copied"))


@pytest.fixture
def scene(scenes: Path) -> Path:
    """A good scene."""
    return scenes / "test-2.tif"


@pytest.fixture
def own_scenes(tmp_path: Path, scenes: Path) -> Path:
    """Scenes that the test may spoil."""
    return Path(shutil.copytree(scenes, tmp_path / "scenes"))


@pytest.fixture
def own_job(tmp_path: Path, own_scenes: Path, trained_run: Path) -> Path:
    """A job on the test's own scenes, not yet run."""
    text = (trained_run.parent / "job.toml").read_text()
    text = text.replace(str(trained_run), str(tmp_path / "run"))
    (tmp_path / "job.toml").write_text(re.sub(r'\[".*/(\w+-\*.tif)"\]', rf'["{own_scenes}/\1"]', text))
    return tmp_path / "job.toml"


@pytest.fixture(scope="session")
def predicted_run(
    trained_run: Path, tmp_path_factory: pytest.TempPathFactory, run_here: Run, scenes: Path
) -> Path:
    """A trained run with a map of its test scene."""
    folder = Path(shutil.copytree(trained_run, tmp_path_factory.mktemp("predicted") / "run"))
    assert run_here("predict", folder, scenes / "test-2.tif").code == 0
    return folder


@pytest.fixture
def own_run(tmp_path: Path, own_scenes: Path, predicted_run: Path) -> Path:
    """A trained run with a map, whose job names the test's own scenes."""
    folder = Path(shutil.copytree(predicted_run, tmp_path / "own"))
    for name in ("job.toml", "split.json", "predictions/predict.json"):
        text = (folder / name).read_text()
        text = re.sub(r'"[^"]*/((?:train|val|test)-[^"/]*.tif)"', rf'"{own_scenes}/\1"', text)
        (folder / name).write_text(text)
    return folder
