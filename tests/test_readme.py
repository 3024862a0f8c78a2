"""The README's verbs run as written, and its tree names every room."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from outsize import cli
from outsize.commands import demo

_ROOT = Path(__file__).parents[1]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")


def _verbs() -> list[list[str]]:
    lines = re.findall(r"^outsize .*$", _README, flags=re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_every_verb_is_shown() -> None:
    shown = {words[0] for words in _verbs()}
    verbs = {command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    assert shown == verbs | {group.name for group in cli.app.registered_groups}


@pytest.mark.long
def test_the_verbs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # the demo as it is, but with less of everything
    small = tuple((split, seed, 384 if split == "train" else 192) for split, seed, _ in demo._SCENES)
    monkeypatch.setattr(demo, "_SCENES", small)
    shorter = demo._JOB.replace("levels = 4\nwidth = 12", "levels = 3\nwidth = 4")
    shorter = re.sub(r"epochs = \d+", "epochs = 1", shorter)
    monkeypatch.setattr(demo, "_JOB", re.sub(r"samples_per_epoch = \d+", "samples_per_epoch = 16", shorter))
    for words in _verbs():
        monkeypatch.setattr("sys.argv", ["outsize", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0, words
    table = re.findall(r"^\| `([^`]+)`(?:, `([^`]+)`)? \|", _README, flags=re.MULTILINE)
    for name in (name for row in table for name in row if name):
        assert (tmp_path / "runs" / "demo" / name).is_file(), name


def test_the_library_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_run: Path, scenes: Path
) -> None:
    examples = re.findall(r"```python\n(.*?)```", _README, flags=re.DOTALL)
    assert len(examples) == 2
    monkeypatch.chdir(tmp_path)
    text = "\n".join(examples).replace("runs/demo/data/test-4.tif", (scenes / "test-2.tif").as_posix())
    exec(text.replace('"runs/demo"', repr(str(trained_run))), {})
    assert (tmp_path / "map.tif").is_file()
    assert (tmp_path / "map2.tif").is_file()


def test_the_tree_names_every_room() -> None:
    rooms = {path.name for path in (_ROOT / "src/outsize").iterdir() if path.is_dir()} - {"__pycache__"}
    files = {path.name for path in (_ROOT / "src/outsize").glob("*.py")} - {"__init__.py"}
    missing = [
        name for name in rooms | files if not re.search(rf"^  {re.escape(name)}", _README, re.MULTILINE)
    ]
    assert missing == []


def test_the_page_of_job_keys_is_true() -> None:
    written = subprocess.run(
        [sys.executable, str(_ROOT / "docs/job_page.py")], capture_output=True, text=True, check=True
    )
    assert (_ROOT / "docs/job.md").read_text(encoding="utf-8") == written.stdout
