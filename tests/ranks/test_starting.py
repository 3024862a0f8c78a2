"""Which command lines are done by ranks, by how many, and on which device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from outsize.errors import RanksError, ReportedElsewhere
from outsize.ranks import ALONE, World, own_device, spread
from outsize.ranks import starting as module

_RANK = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def launch(words: Sequence[str], num_ranks: int, **_: object) -> int:
        calls.append(([*words], num_ranks))
        return 3 if "bad" in words else 0

    monkeypatch.setattr(module, "launch", launch)
    return calls


def _gpus(monkeypatch: pytest.MonkeyPatch, num: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num)


def test_the_same_words_go_to_all_ranks(launched: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 0)
    monkeypatch.setattr("sys.argv", ["outsize", "predict", "r", "--gpus", "2"])
    said: list[str] = []
    assert spread(2, "auto", say=said.append, environ={})
    assert launched == [(["-m", "outsize", "predict", "r", "--gpus", "2"], 2)]
    assert said == ["no GPU: 2 processes on the CPU, which meet by gloo"]
    monkeypatch.setattr("sys.argv", ["outsize", "bad"])
    with pytest.raises(ReportedElsewhere) as ended:
        spread(2, "auto", say=said.append, environ={})
    assert ended.value.exit_code == 3


@pytest.mark.parametrize(("num", "environ"), [(None, {}), (1, {}), (None, _RANK), (4, _RANK), (2, _RANK)])
def test_a_rank_and_a_process_alone_do_it_themselves(
    num: int | None, environ: dict[str, str], launched: list[Any]
) -> None:
    assert not spread(num, "auto", say=print, environ=environ)
    assert launched == []


def test_more_ranks_than_gpus_are_refused(launched: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 2)
    with pytest.raises(RanksError, match="--gpus 8 is more than there is: found 2 GPUs, needed 8"):
        spread(8, "auto", say=print, environ={})
    with pytest.raises(RanksError, match="--gpus 2 with one device: found cuda:1"):
        spread(2, "cuda:1", say=print, environ={})
    with pytest.raises(RanksError, match="--gpus does not fit: found 8, needed 4"):
        spread(8, "auto", say=print, environ=_RANK)
    assert launched == []


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 2)
    second = World(3, 4, local_rank=1, local_size=2)
    assert own_device(second, "auto") == own_device(second, "cuda") == "cuda:1"
    assert own_device(second, "cpu") == "cpu"
    assert own_device(ALONE, "auto") == "auto"
    _gpus(monkeypatch, 0)
    assert own_device(second, "auto") == "auto"
