"""Packs that are damaged or hostile: nothing is left, and one line says why."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outsize.errors import DataError, OutputError, OutsizeError, RunError, UnsafeFileError
from outsize.packing.archive import Content, write_archive, write_folder
from outsize.packing.pack import _refuse_target
from outsize.packing.unpack import unpack
from outsize.progress import Reporter

_JOB = b"""
[data]
root = "data"
train = ["*.tif"]
[[data.classes]]
name = "a"
value = 0
[[data.classes]]
name = "b"
value = 1
"""
_ASKED = {
    "nodes": 1,
    "tasks_per_node": 1,
    "gpus_per_node": 0,
    "cpus_per_task": 1,
    "memory_gib": 4,
    "minutes": None,
}
Change = Callable[[dict[str, Any]], object]


def _line(name: str, data: bytes) -> bytes:
    about = {"name": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return json.dumps(about).encode() + b"\n"


def _contents(files: dict[str, bytes], change: Change = lambda _: None) -> list[Content]:
    """The files of a pack with a head and lists that are true, but for what `change` does to the head."""
    lists = {"manifest.jsonl": b"".join(_line(*each) for each in files.items()), "data.jsonl": b""}
    head = {
        "pack": 1,
        "job": "mine",
        "starts": {},
        "allocation": dict(_ASKED),
        "data": {"files": 0, "bytes": 0, "along": False, "root": "/nowhere", "inner": "."},
        "lists": {name: hashlib.sha256(data).hexdigest() for name, data in lists.items()},
    }
    change(head)
    heads = {"pack.json": json.dumps(head).encode(), **lists}
    return [Content(name, data) for name, data in {**heads, **files}.items()]


def _written(path: Path, contents: list[Content]) -> Path:
    write_archive(path, contents, zipped=path.suffix == ".gz", tell=lambda _: None)
    return path


def _refused(path: Path, kind: type[OutsizeError], text: str) -> None:
    before = set(path.parent.iterdir())
    with pytest.raises(kind) as caught:
        unpack(path, path.parent / "new" / "there", None, Reporter("quiet"))
    assert text in str(caught.value), caught.value
    assert set(path.parent.iterdir()) == before


def test_a_true_pack_is_taken_out(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.tar.gz", _contents({"job.toml": _JOB, "run/x": b"1" * 3_000_000}))
    folder = unpack(path, tmp_path / "there", None, Reporter("quiet")).folder
    assert (folder / "run/x").read_bytes() == b"1" * 3_000_000
    assert f'root = "{folder}/data"' not in _JOB.decode()
    assert 'run = "' in (folder / "job.toml").read_text()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a//x", "./x", "a\nx", "x" * 300, ".."])
def test_names_that_lead_outside(tmp_path: Path, name: str) -> None:
    _refused(
        _written(tmp_path / "a.tar", _contents({"job.toml": _JOB, name: b"x"})), UnsafeFileError, "is refused"
    )


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
)
def test_members_that_are_no_plain_files(tmp_path: Path, kind: bytes) -> None:
    path = _written(tmp_path / "a.tar", _contents({"job.toml": _JOB}))
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("run")
        member.type, member.linkname = kind, "/etc"
        archive.addfile(member)
    _refused(path, UnsafeFileError, "which is no plain file")


def test_sparse_members(tmp_path: Path) -> None:
    contents = _contents({"job.toml": _JOB})
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for each in contents:
            assert isinstance(each.source, bytes)
            about = tarfile.TarInfo(each.name)
            about.size = len(each.source)
            if each.name == "job.toml":
                about.pax_headers = {"GNU.sparse.map": f"0,{about.size}", "GNU.sparse.size": str(2**50)}
            archive.addfile(about, io.BytesIO(each.source))
    path = tmp_path / "a.tar"
    path.write_bytes(made.getvalue())
    _refused(path, UnsafeFileError, "which is no plain file")


def test_a_head_without_bounds(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        about = tarfile.TarInfo("pack.json")
        about.pax_headers = {"comment": "x" * 3_000_000}
        archive.addfile(about)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(made.getvalue()))
    _refused(path, RunError, "a head without bounds")


def test_sizes_are_those_of_the_list(tmp_path: Path) -> None:
    contents = _contents({"job.toml": _JOB, "run/x": b"small"})
    _refused(
        _written(tmp_path / "a.tar.gz", [*contents[:-1], Content("run/x", b"0" * 10**7)]),
        RunError,
        "another size",
    )
    huge = json.dumps({"name": "x", "size_bytes": 2**60, "sha256": "0" * 64}).encode()
    more = [
        each for each in _contents({"job.toml": _JOB}, _lists(manifest=huge)) if each.name != "manifest.jsonl"
    ]
    more.insert(1, Content("manifest.jsonl", huge))
    _refused(_written(tmp_path / "b.tar", more), OutputError, "has no room")


def _lists(manifest: bytes) -> Change:
    return lambda head: head["lists"].update({"manifest.jsonl": hashlib.sha256(manifest).hexdigest()})


def test_contents_and_lists_are_those_that_were_packed(tmp_path: Path) -> None:
    contents = _contents({"job.toml": _JOB, "run/x": b"right"})
    for number, name in enumerate(("run/x", "manifest.jsonl", "data.jsonl")):
        wrong = [Content(name, b"wrong") if each.name == name else each for each in contents]
        _refused(_written(tmp_path / f"{number}.tar", wrong), RunError, f"{name} is not what was packed")
    _refused(_written(tmp_path / "few.tar", contents[:-1]), RunError, "1 file too few: run/x")
    twice = [*contents, contents[-1]]
    _refused(_written(tmp_path / "twice.tar", twice), RunError, "'run/x', which is not listed")
    more = [*contents, Content("run/y", b"")]
    _refused(_written(tmp_path / "more.tar", more), RunError, "'run/y', which is not listed")
    _refused(_written(tmp_path / "order.tar", contents[::-1]), RunError, "where pack.json should be")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda head: head.update(pack=2), "another version of packs: found 2"),
        (lambda head: head.update(pack="1"), "another version"),
        (lambda head: head.pop("pack"), "is no pack"),
        (lambda head: head.pop("lists"), "KeyError"),
        (lambda head: head.update(data=[]), "TypeError"),
        (lambda head: head.update(job="../mine"), "no name of the job"),
        (lambda head: head.update(job="a\nrm -r ."), "is refused"),
        (lambda head: head["allocation"].update(nodes="1\nrm -r ."), "no numbers"),
        (lambda head: head["allocation"].update(nodes=True), "no numbers"),
        (lambda head: head["data"].update(inner="../.."), "is refused"),
        (lambda head: head.update(starts={"train.init": "/root"}), "is refused"),
        (lambda head: head.update(starts={"seed": "x"}), "other weights"),
    ],
)
def test_heads_that_cannot_be_believed(tmp_path: Path, change: Change, text: str) -> None:
    _refused(_written(tmp_path / "a.tar", _contents({"job.toml": _JOB}, change)), OutsizeError, text)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_every_kind_of_damage_is_one_line(tmp_path: Path, name: str) -> None:
    whole = _written(tmp_path / name, _contents({"job.toml": _JOB, "run/x": bytes(range(256)) * 20}))
    data = whole.read_bytes()
    pieces = [data[:end] for end in range(0, len(data) - 1024, max(1, len(data) // 40))]
    pieces += [
        data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :] for at in range(0, len(data), len(data) // 60)
    ]
    said = []
    for piece in pieces:
        whole.write_bytes(piece)
        try:
            unpack(whole, tmp_path / "there", None, Reporter("quiet"))
        except OutsizeError as error:
            said.append(str(error))
        else:  # a byte that says nothing: padding, a time, a name of a user
            shutil.rmtree(tmp_path / "there")
        assert set(tmp_path.iterdir()) == {whole}
    assert all(": found " in each for each in said)
    assert len(said) > len(pieces) / 2
    whole.write_bytes(b"hello")
    _refused(whole, RunError, "is damaged")


def test_folders_are_checked_alike(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    write_folder(folder, _contents({"job.toml": _JOB, "run/x": b"x"}), tell=lambda _: None)
    assert (unpack(folder, tmp_path / "there", None, Reporter("quiet")).folder / "run/x").read_bytes() == b"x"
    (folder / "run/x").unlink()
    (folder / "run/x").symlink_to("/etc/passwd")
    _refused(folder, UnsafeFileError, "run/x, a link")
    (folder / "pack.json").unlink()
    _refused(folder, RunError, "no pack.json")
    _refused(tmp_path / "nothing.tar", RunError, "nothing.tar cannot be read: found No such file")
    os.mkfifo(tmp_path / "pipe.tar")
    _refused(tmp_path / "pipe.tar", RunError, "pipe.tar cannot be read: found a pipe")


def test_a_folder_that_stays_is_checked_the_first_time(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    write_folder(folder, _contents({"job.toml": _JOB, "run/x": b"x"}), tell=lambda _: None)
    (folder / "run/x").write_bytes(b"y")
    with pytest.raises(RunError, match="run/x is not what was packed"):
        unpack(folder, None, None, Reporter("quiet"))
    assert (folder / "job.toml").read_bytes() == _JOB
    (folder / "run/x").write_bytes(b"x")
    unpack(folder, None, None, Reporter("quiet"))
    (folder / "run/x").write_bytes(b"a training went on here")
    assert unpack(folder, None, None, Reporter("quiet")).folder == folder


def test_a_folder_that_somebody_uses_is_left_alone(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.tar", _contents({"job.toml": _JOB}))
    (tmp_path / "there").mkdir()
    (tmp_path / "there/.git").write_text("mine")
    with pytest.raises(OutputError, match=r"in use: found \.git"):
        unpack(path, tmp_path / "there", None, Reporter("quiet"))
    with pytest.raises(OutputError, match=r"cannot be .*there: found \.git"):
        _refuse_target(tmp_path / "there", overwrite=True)
    assert (tmp_path / "there/.git").read_text() == "mine"


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.tif cannot be read: found No such file"):
        Content("data/gone.tif", tmp_path / "gone.tif").finished()
    with pytest.raises(DataError, match=r"gone\.tif cannot be read"):
        _written(tmp_path / "a.tar", [Content("data/gone.tif", tmp_path / "gone.tif")])
