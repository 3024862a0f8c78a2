"""Every piece is made, once, whoever dies meanwhile; calls are as long as they should be."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.pieces import Here, copying

from outsize import __version__
from outsize.errors import RunError
from outsize.prepare.batches import _Todo, make_all
from outsize.prepare.piece import PieceMade
from outsize.prepare.workers import Processes, workers


def _names(made: Any) -> list[str]:
    return sorted(each.name for each in made if not each.why)


def test_all_are_made_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    pieces = copying(tmp_path / "from", "abcde")
    (tmp_path / "from" / "c").write_text("bad")
    made = list(make_all(pieces, Here(), tmp_path / "to", __version__))  # type: ignore[arg-type]
    assert _names(made) == list("abde")
    assert [(each.name, each.why) for each in made if each.why] == [
        ("c", "c is bad: found bad, needed good; mend it")
    ]
    assert (tmp_path / "to" / "a.out").read_text() == "A"


def test_a_call_takes_about_a_second_and_the_last_ones_less(tmp_path: Path) -> None:
    work = _Todo(deque(copying(tmp_path, [str(number) for number in range(100)])))
    assert len(work.next_batch(2, 0)) == 1  # nothing is known yet
    work.note([PieceMade("0", taken_s=0.1)])
    sizes = [len(work.next_batch(2, 0)) for _ in range(15)]
    assert sizes[:4] == [10] * 4  # of a tenth of a second each
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)
    assert work.next_batch(2, 4) == []  # two for each worker are on their way


def test_a_piece_that_kills_is_tried_with_others_then_alone_then_given_up(tmp_path: Path) -> None:
    by = Here(lost="c")
    made = list(make_all(copying(tmp_path / "from", "abcdef"), by, tmp_path / "to", __version__))  # type: ignore[arg-type]
    assert _names(made) == list("abdef")
    (given_up,) = [each for each in made if each.why]
    assert given_up.name == "c"
    assert "the process that made c was killed: found 3 times" in given_up.why
    assert by.calls[-1] == ["c"]


def test_a_process_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    pieces = copying(tmp_path / "from", "abcdef", kills="c", once=once)
    with workers(2, None) as by:
        made = list(make_all(pieces, by, tmp_path / "to", __version__))
    assert _names(made) == list("abcdef")
    assert Path(once).exists()


def test_one_that_always_kills_is_set_aside_and_no_other(tmp_path: Path) -> None:
    with workers(2, None) as by:
        made = list(make_all(copying(tmp_path / "from", "abc", kills="b"), by, tmp_path / "to", __version__))
    assert _names(made) == ["a", "c"]
    assert [each.name for each in made if each.why] == ["b"]


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="another version of outsize"):
        list(make_all(copying(tmp_path, "a"), Here(), tmp_path, "0.0.1"))  # type: ignore[arg-type]


def test_what_is_under_way_ends_at_once_with_an_error(tmp_path: Path) -> None:
    def hand_out() -> Processes:
        with workers(1, None) as by:
            assert isinstance(by, Processes)
            pieces = copying(tmp_path / "from", "ab", takes_s=600)
            for _ in make_all([*copying(tmp_path / "from", "c"), *pieces], by, tmp_path / "to", __version__):
                raise KeyError("something else")
        return by

    with pytest.raises(KeyError):
        hand_out()
    assert not (tmp_path / "to" / "a.out").exists()


def test_what_is_no_address_is_said_before_anything_is_tried() -> None:
    with pytest.raises(RunError, match="no address of a scheduler: found 'host'"), workers(1, "host"):
        pass
