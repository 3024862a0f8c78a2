"""Ranks on this machine: all to the end, one that says why it ends, one that is killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from outsize.errors import RanksError
from outsize.ranks.launch import launch

# without torch, which takes each rank long to load; but one that joins the others
_SCRIPT = """
import os, signal, sys, time
from pathlib import Path
folder, mode = Path(sys.argv[1]), sys.argv[2]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if mode == "join":
    from outsize.ranks import joined
    with joined() as world:
        assert (world.rank, world.size) == (rank, size)
        world.barrier()
with (folder / f"rank{rank}").open("a") as file:
    file.write(" ".join(sys.argv[2:]) + f" {size}\\n")
while len(list(folder.glob("rank?"))) < size:
    time.sleep(0.01)
if mode == "refuse":
    sys.exit(2)
if mode == "die" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _launch(folder: Path, mode: str, told: list[str], restarts: int = 1) -> int:
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    words = [str(script), str(folder), mode]
    return launch(
        words, 2, again=lambda words: [*words[:2], "go on", "--resume"], say=told.append, restarts=restarts
    )


def _read(folder: Path) -> list[str]:
    return [(folder / f"rank{rank}").read_text() for rank in range(2)]


def test_all_ranks_run_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert _launch(tmp_path, "join", told) == 0
    assert _read(tmp_path) == ["join 2\n"] * 2
    assert told == []
    assert not [*(tmp_path / "temporary").iterdir()], "nothing is left"


def test_what_ends_by_itself_is_not_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    assert _launch(tmp_path, "refuse", told) == 2
    assert _read(tmp_path) == ["refuse 2\n"] * 2
    assert told == []
    assert capfd.readouterr() == ("", ""), "the launcher says nothing beside what a rank has said"


def test_a_rank_that_is_killed_has_all_begin_anew(tmp_path: Path) -> None:
    told: list[str] = []
    assert _launch(tmp_path, "die", told) == 0
    assert _read(tmp_path) == ["die 2\ngo on --resume 2\n"] * 2
    assert told == ["rank 1 was killed by SIGKILL in start: all ranks start over, from what was saved last"]


def test_ranks_that_are_killed_again_are_given_up(tmp_path: Path) -> None:
    with pytest.raises(RanksError, match="rank 1 was killed in start: found SIGKILL"):
        _launch(tmp_path, "die", [], restarts=0)
