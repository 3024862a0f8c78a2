"""Ranks on this machine: all to the end, one that says why it ends, one that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.errors import RanksError
from outsize.ranks.launch import launch

_SCRIPT = """
import os, signal, sys
from pathlib import Path
from outsize.ranks import joined
folder, mode = Path(sys.argv[1]), sys.argv[2]
with joined() as world:
    with (folder / f"rank{world.rank}").open("a") as file:
        file.write(" ".join(sys.argv[2:]) + f" {world.size}\\n")
    world.barrier()
    if mode == "refuse":
        sys.exit(2)
    if mode == "die" and world.rank == 1:
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


def test_all_ranks_run_to_the_end(tmp_path: Path) -> None:
    told: list[str] = []
    assert _launch(tmp_path, "work", told) == 0
    assert _read(tmp_path) == ["work 2\n"] * 2
    assert told == []


def test_what_ends_by_itself_is_not_repeated(tmp_path: Path) -> None:
    told: list[str] = []
    assert _launch(tmp_path, "refuse", told) == 2
    assert _read(tmp_path) == ["refuse 2\n"] * 2
    assert told == []


def test_a_rank_that_is_killed_has_all_begin_anew(tmp_path: Path) -> None:
    told: list[str] = []
    assert _launch(tmp_path, "die", told) == 0
    assert _read(tmp_path) == ["die 2\ngo on --resume 2\n"] * 2
    assert told == ["rank 1 was killed by SIGKILL: all ranks begin anew, from what was saved last"]


def test_ranks_that_are_killed_again_are_given_up(tmp_path: Path) -> None:
    with pytest.raises(RanksError, match="rank 1 was killed: found SIGKILL"):
        _launch(tmp_path, "die", [], restarts=0)
