"""Findings are made once, and made again where what is remembered cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from outsize.measure import remembered
from outsize.measure.remembered import code_of, key_of, recall, recall_or_make, text_of

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Found:
    number: int


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "not there yet"
    monkeypatch.setattr(remembered, "cache_folder", lambda: found)
    return found


def _found(tree: dict[str, int]) -> Found:
    return Found(**tree)


def test_what_was_made_is_read_the_next_time(folder: Path) -> None:
    made = iter([Found(1), Found(2)])
    for _ in range(2):
        assert recall_or_make("a.json", _CPU, read=_found, make=lambda: next(made)) == Found(1)
    (folder / "a.json").unlink()
    assert recall_or_make("a.json", _CPU, read=_found, make=lambda: next(made)) == Found(2)


def test_without_a_folder_or_a_finding_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recall_or_make("a.json", _CPU, read=_found, make=lambda: None) is None
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(remembered, "cache_folder", lambda: None)
    assert recall_or_make("a.json", _CPU, read=_found, make=lambda: Found(1)) == Found(1)
    assert recall("a.json", _found) is None


@pytest.mark.parametrize("looks", [(True, False), (False, True)], ids=["before", "after"])
def test_what_is_found_out_beside_others_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[bool, bool]
) -> None:
    told: list[str] = []
    others = iter([*looks, False, False])
    monkeypatch.setattr(remembered, "is_shared", lambda _: next(others))
    made = iter([Found(1), Found(2)])
    for number in (1, 2, 2):
        found = recall_or_make("a.json", _CPU, read=_found, make=lambda: next(made), warn=told.append)
        assert found == Found(number)
    assert [text.partition(":")[0] for text in told] == ["others are at work on cpu"]


def _plant_pipe(path: Path) -> None:
    os.mkfifo(path)


def _plant_link(path: Path) -> None:
    path.with_name("elsewhere").write_text('{"number": 9}')
    path.symlink_to(path.with_name("elsewhere"))


def _plant_deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def _plant_giant(path: Path) -> None:
    path.touch(mode=0o600)
    os.truncate(path, 2**40)


def _plant_for_all_to_write(path: Path) -> None:
    path.write_text('{"number": 9}')
    path.chmod(0o666)


def _plant_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "plant", [_plant_pipe, _plant_link, _plant_deep, _plant_giant, _plant_for_all_to_write, _plant_zeros]
)
def test_what_others_may_have_put_there_is_made_again(folder: Path, plant: Callable[[Path], None]) -> None:
    folder.mkdir()
    plant(folder / "a.json")
    for _ in range(2):
        assert recall_or_make("a.json", _CPU, read=_found, make=lambda: Found(1)) == Found(1)
    assert recall("a.json", _found) == Found(1)
    assert folder.stat().st_mode & 0o777 == 0o700
    if (folder / "elsewhere").exists():
        assert (folder / "elsewhere").read_text() == '{"number": 9}'


def test_a_folder_of_another_user_is_told_and_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    folder.mkdir(mode=0o700)
    monkeypatch.setattr("outsize.files.private.os.geteuid", lambda: os.getuid() + 1)
    (folder / "a.json").write_text('{"number": 9}')
    found = recall_or_make("a.json", _CPU, read=_found, make=lambda: Found(1), warn=told.append)
    assert found == Found(1)
    assert "belongs to another user" in "".join(told)
    assert (folder / "a.json").read_text() == '{"number": 9}'


def test_the_order_of_names_counts_and_their_borders() -> None:
    assert len({key_of(names) for names in (["a", "b"], ["b", "a"], ["ab"], ["a"])}) == 4


def test_the_code_of_a_package_changes_with_each_of_its_modules(tmp_path: Path) -> None:
    package = ModuleType("package")
    package.__path__ = [str(tmp_path)]
    (tmp_path / "deeper").mkdir()
    paths = [tmp_path / name for name in ("__init__.py", "one.py", "deeper/two.py")]
    seen = []
    for number, changed in enumerate((*paths, *paths)):
        changed.write_text(f"{number}")
        seen.append(tuple(code_of(package)))
    assert len(set(seen)) == len(seen)
    assert tuple(code_of(package)) == seen[-1]


def test_models_that_differ_have_other_names() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    before = text_of(model)
    assert text_of(model) == before
    model[0].weight.requires_grad_(False)
    frozen = text_of(model)
    wider = text_of(nn.Sequential(nn.Conv2d(3, 9, 3)))
    assert len({before, frozen, wider}) == 3
