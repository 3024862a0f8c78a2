"""The demo draws and trains in folders of its own, and removes nothing of a user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.commands import demo as command
from outsize.commands.demo import demo
from outsize.errors import OutputError
from outsize.files.ownership import is_marked
from outsize.progress import Reporter
from outsize.runs import RunFolder

QUIET = Reporter("quiet")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have scenes be drawn, small ones, and nothing else be done."""
    monkeypatch.setattr(command, "_SCENES", (("train", 1, 16), ("test", 4, 16)))

    def draw(run: RunFolder, *_: object) -> None:
        command._draw_scenes(run.path / "data", QUIET)
        (run.path / "demo.toml").touch()

    monkeypatch.setattr(command, "_fill", draw)


def _demo(out: Path, overwrite: bool = False) -> None:
    demo(out, device_name="cpu", reporter=QUIET, overwrite=overwrite)


def _files(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.txt")}


@pytest.mark.usefixtures("drawn")
def test_data_of_a_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for name in ("data/mine.txt", "data/deep/train-1.txt"):
        (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError, match=r"is not outsize's own: found data, .*choose another --out"):
        _demo(Path())
    assert sorted(tmp_path.rglob("*")) == before
    _demo(Path(), overwrite=True)
    assert set(_files(tmp_path).values()) == {"mine"}
    assert (tmp_path / "data" / "test-4.tif").exists()


@pytest.mark.usefixtures("drawn")
def test_data_within_a_run_is_not_taken_for_that_of_a_demo(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    (run.path / "data").mkdir(parents=True)
    for path in (run.job, run.metrics, run.path / "data" / "train-1.tif", run.path / "data" / "mine.txt"):
        path.write_text("mine")
    with pytest.raises(OutputError, match=r"would draw scenes into .*data: found mine.txt, train-1.tif"):
        _demo(run.path)
    (run.path / "data" / "mine.txt").unlink()
    with pytest.raises(OutputError, match="would draw scenes"):
        _demo(run.path)
    (run.path / "demo.toml").touch()  # a demo of an earlier version
    _demo(run.path)
    assert is_marked(run.path / "data")


@pytest.mark.usefixtures("drawn")
def test_a_demo_is_run_again_in_its_folder(tmp_path: Path) -> None:
    for _ in range(2):
        _demo(tmp_path / "demo")
    assert sorted(path.name for path in (tmp_path / "demo" / "data").iterdir()) == [
        ".outsize",
        *(
            f"{name}{end}"
            for name in ("test-4", "train-1")
            for end in (".tif", "_labels.gpkg", "_labels.tif")
        ),
    ]
    assert not (tmp_path / "demo" / ".outsize.lock").exists()
