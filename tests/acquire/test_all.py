"""Whatever a server does, at the end the right files are there, or a line for each that is not."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acquire.faulty_server import Faulty, serving

from outsize.acquire.all import Acquired, fetch_all, without_secrets
from outsize.acquire.fetch import PARTIAL, opener
from outsize.acquire.listing import Remote
from outsize.acquire.pace import Manners
from outsize.errors import OutputError
from outsize.files.manifest import MANIFEST, Manifest
from outsize.progress import Reporter

_BODY = os.urandom(300_000)
_MANNERS = Manners(tries=3, pause_s=0.001, timeout_s=10)


@pytest.fixture
def server() -> Iterator[Faulty]:
    with serving(Faulty(files={f"/{name}": _BODY for name in "abcdef"})) as state:
        yield state


def _on_full_disk(*_: object) -> io.FileIO:
    return io.FileIO("/dev/full", "w")


def _sum(body: bytes = _BODY) -> tuple[str, str]:
    return "sha256", hashlib.sha256(body).hexdigest()


def _fetch(
    server: Faulty, to: Path, *names: str, manners: Manners = _MANNERS, checked: bool = True
) -> Acquired:
    remotes = [Remote(f"{server.url}/{name}", name, _sum() if checked else None) for name in names]
    return fetch_all(remotes, to, manners=manners, version="0", reporter=Reporter("quiet"))


def _whole(folder: Path) -> set[str]:
    """Return the files that are there, each of them right; nothing half written has a name."""
    found = {path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST}
    assert all(path.read_bytes() == _BODY for path in found)
    return {path.name for path in found}


@pytest.mark.parametrize(
    "faults",
    [
        ["drop"],
        ["drop", "drop", "drop", "drop", "drop"],
        ["500", "429"],
        ["503", "drop", "502"],
        ["too long"],
        ["too long", "too long"],
        ["drop", "wrong bytes"],
        ["drop", "no range"],
    ],
)
@pytest.mark.parametrize("has_tags", [True, False])
def test_a_faulty_server_gives_the_file_in_the_end(
    server: Faulty, tmp_path: Path, faults: list[str], has_tags: bool
) -> None:
    server.has_tags = has_tags
    if not has_tags:
        faults = faults[:2]  # each starts over: that is no progress
    server.faults = {"/a": list(faults)}
    done = _fetch(server, tmp_path, "a", "b")
    assert (done.missed, _whole(tmp_path)) == ((), {"a", "b"})
    assert not [*(tmp_path / PARTIAL).iterdir()]


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (["500"] * 9, "HTTP 500 .*3 times"),
        (["wrong bytes"] * 9, "its sha256 is .*, not "),
        (["too short"] * 9, "its sha256 is .*, not "),
        (["404"], "HTTP 404"),
    ],
)
def test_a_file_that_cannot_be_had_is_one_line_and_keeps_no_other(
    server: Faulty, tmp_path: Path, faults: list[str], why: str
) -> None:
    server.faults = {"/a": list(faults)}
    done = _fetch(server, tmp_path, "a", "b", "nowhere")
    assert {each.remote.name for each in done.missed} == {"a", "nowhere"}
    (of_a,) = [each.why for each in done.missed if each.remote.name == "a"]
    assert re.search(why, of_a)
    assert "\n" not in of_a
    assert _whole(tmp_path) == {"b"}


def test_without_a_checksum_a_length_that_never_comes_is_a_failure_that_ends(
    server: Faulty, tmp_path: Path
) -> None:
    server.faults = {"/a": ["too long"] * 99}
    done = _fetch(server, tmp_path, "a", checked=False)
    assert len(done.missed) == 1
    assert _whole(tmp_path) == set()


def test_what_arrived_is_not_asked_for_again(server: Faulty, tmp_path: Path) -> None:
    server.faults = {"/a": ["drop", "500", "500", "500"]}
    assert len(_fetch(server, tmp_path, "a").missed) == 1
    half = (tmp_path / PARTIAL / "a").stat().st_size
    assert 0 < half < len(_BODY)
    assert _fetch(server, tmp_path, "a").num_bytes == len(_BODY) - half
    assert server.ranges[-1] == f"bytes={half}-"
    assert _whole(tmp_path) == {"a"}


def test_what_is_there_is_not_fetched_again_unless_it_changed(server: Faulty, tmp_path: Path) -> None:
    _fetch(server, tmp_path, "a", "b")
    again = _fetch(server, tmp_path, "a", "b")
    assert (again.num_fetched, again.num_there, server.requests["/a"]) == (0, 2, 1)
    (tmp_path / "a").write_bytes(_BODY[:-1])
    assert _fetch(server, tmp_path, "a", "b").num_fetched == 1
    assert _whole(tmp_path) == {"a", "b"}
    assert Manifest(tmp_path / MANIFEST).get("a").facts == {"url": f"{server.url}/a"}  # type: ignore[union-attr]


def test_a_file_of_other_make_is_left_alone(server: Faulty, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    (missed,) = _fetch(server, tmp_path, "a").missed
    assert "other make" in missed.why
    assert (tmp_path / "a").read_text() == "mine"


def test_a_server_is_asked_for_no_more_at_once_than_it_may(server: Faulty, tmp_path: Path) -> None:
    _fetch(server, tmp_path, *"abcdef", manners=Manners(parallel=2))
    assert server.most_at_once <= 2


def test_a_full_disk_is_one_line_and_what_is_there_stays(
    server: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fetch(server, tmp_path, "a")
    monkeypatch.setattr("outsize.acquire.fetch._opened", _on_full_disk)
    with pytest.raises(OutputError, match="No space left"):
        _fetch(server, tmp_path, "a", "b")
    monkeypatch.undo()
    assert not _fetch(server, tmp_path, "a", "b").missed
    assert _whole(tmp_path) == {"a", "b"}


def test_a_redirection_cannot_lead_to_files_of_this_machine(tmp_path: Path) -> None:
    assert set(opener("0").handle_open) == {"http", "https", "unknown"}


def test_files_of_this_machine_are_copied(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a").write_bytes(_BODY)
    to = tmp_path / "to"
    to.mkdir()
    remotes = [Remote(f"file:{tmp_path}/from/{name}", name) for name in ("a", "nowhere")]
    done = fetch_all(remotes, to, manners=_MANNERS, version="0", reporter=Reporter("quiet"))
    assert [each.why for each in done.missed] == ["No such file or directory"]
    assert _whole(to) == {"a"}


def test_no_key_or_password_is_written_down() -> None:
    assert without_secrets("https://me:word@h/a?key=1#2") == "https://h/a"
