"""Rates of the machine at hand: measured on a CPU, and remembered; the CUDA half as far as it goes without a GPU."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outsize.files.cache import cache_folder
from outsize.measure import remembered
from outsize.measure.machine import bandwidth, machine_rates
from outsize.measure.machine.bandwidth import Measured, measure, recall_or_measure
from outsize.measure.memory import free_gpu_bytes

_CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "not" / "there"
    monkeypatch.setattr(remembered, "cache_folder", lambda: found)
    return found


MIB = 2**20


def _made_up(fingerprint: str, memory: float = 2e10) -> Measured:
    return Measured(
        fingerprint, "a CPU", "", "2", {"fp32": 3e10}, {"fp32": 5e10}, memory, None, None, 2e-5, 1.0
    )


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Measured]:
    """Measurements that are made, without the work."""
    made: list[Measured] = []

    def stand_in(device: torch.device, *, room_bytes: float) -> Measured:
        made.append(_made_up(bandwidth.fingerprint(device), memory=1e10 * (len(made) + 1)))
        return made[-1]

    monkeypatch.setattr(bandwidth, "measure", stand_in)
    return made


def test_a_cpu_is_measured_and_leaves_no_trace() -> None:
    before = torch.get_rng_state()
    found = measure(_CPU, budget_s=0.05)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.took_s > 0
    assert set(found.matmul_flops_per_s) == set(found.conv_flops_per_s) == {"fp32"}
    for rate in (found.matmul_flops_per_s["fp32"], found.conv_flops_per_s["fp32"], found.memory_bytes_per_s):
        assert 1e6 < rate < 1e15
    assert 1e-9 < found.host_op_s < 1.0
    rates = found.rates()
    assert rates.origin == "measured"
    assert rates.fp32_flops_per_s == max(found.matmul_flops_per_s["fp32"], found.conv_flops_per_s["fp32"])
    assert rates.bf16_flops_per_s is rates.to_device_bytes_per_s is rates.to_host_bytes_per_s is None


def test_a_measurement_is_remembered_whole(folder: Path, counted: list[Measured]) -> None:
    first = recall_or_measure(_CPU)
    second = recall_or_measure(_CPU)
    assert len(counted) == 1
    assert first == second == counted[0]
    assert [path.name for path in folder.iterdir()] == [f"machine-{first.fingerprint}.json"]
    assert machine_rates(_CPU) == first.rates()


def _without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda tree: {name: value for name, value in tree.items() if name != key}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tree: None,
        lambda tree: [tree],
        lambda tree: 3,
        lambda tree: {},
        _without("memory_bytes_per_s"),
        lambda tree: tree | {"more": 1},
        lambda tree: tree | {"fingerprint": "0" * 16},
        lambda tree: tree | {"memory_bytes_per_s": -1.0},
        lambda tree: tree | {"memory_bytes_per_s": "2e10"},
        lambda tree: tree | {"memory_bytes_per_s": float("nan")},
        lambda tree: tree | {"to_host_bytes_per_s": float("inf")},
        lambda tree: tree | {"host_op_s": 0.0},
        lambda tree: (
            tree | {"host_op_s": 1e6}
        ),  # numbers that no machine has would give a plan that cannot be
        lambda tree: tree | {"memory_bytes_per_s": 1e-30},
        lambda tree: tree | {"memory_bytes_per_s": 1e30},
        lambda tree: tree | {"memory_bytes_per_s": True},
        lambda tree: tree | {"conv_flops_per_s": {"fp32": 1e300}},
        _without("host_op_s"),
        lambda tree: tree | {"conv_flops_per_s": {}},
        lambda tree: tree | {"matmul_flops_per_s": {}},
        lambda tree: tree | {"matmul_flops_per_s": [1.0]},
        lambda tree: tree | {"matmul_flops_per_s": {"fp32": None}},
    ],
)
def test_a_broken_or_foreign_file_is_made_again(
    folder: Path, counted: list[Measured], spoil: Callable[[dict[str, Any]], Any]
) -> None:
    known = recall_or_measure(_CPU)
    path = folder / f"machine-{known.fingerprint}.json"
    path.write_text(json.dumps(spoil(asdict(known))), encoding="utf-8")
    again = recall_or_measure(_CPU)
    assert again == counted[1] != known
    assert json.loads(path.read_text(encoding="utf-8")) == asdict(again)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"{'fingerprint': 1}"])
def test_a_file_that_is_no_json_is_made_again(folder: Path, counted: list[Measured], content: bytes) -> None:
    folder.mkdir(parents=True, mode=0o700)
    path = folder / f"machine-{bandwidth.fingerprint(_CPU)}.json"
    path.write_bytes(content)
    assert recall_or_measure(_CPU) == counted[0]
    assert recall_or_measure(_CPU) == counted[0]
    assert len(counted) == 1


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path, counted: list[Measured]) -> None:
    folder.parent.write_text("a file, not a folder", encoding="utf-8")
    for _ in range(2):
        recall_or_measure(_CPU)
    folder.parent.unlink()
    taken = folder / f"machine-{bandwidth.fingerprint(_CPU)}.json"
    taken.mkdir(parents=True)
    recall_or_measure(_CPU)
    assert len(counted) == 3
    assert [path.name for path in folder.iterdir()] == [taken.name]


def test_without_a_home_it_is_measured_each_time(
    monkeypatch: pytest.MonkeyPatch, counted: list[Measured]
) -> None:
    monkeypatch.setattr(remembered, "cache_folder", lambda: None)
    recall_or_measure(_CPU)
    recall_or_measure(_CPU)
    assert len(counted) == 2


def test_the_folder_is_where_users_expect_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" / "outsize"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == tmp_path / ".cache" / "outsize"

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder() is None


def test_another_torch_or_number_of_threads_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = bandwidth.fingerprint(_CPU)
    assert here == bandwidth.fingerprint(_CPU)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    threads = bandwidth.fingerprint(_CPU)
    monkeypatch.setattr(torch, "__version__", "99")
    assert len({here, threads, bandwidth.fingerprint(_CPU)}) == 3


def test_time_is_that_of_the_fastest_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    # two runs for nothing, then eight of which one was lucky and the rest were held up more and more
    turns = iter([9.0, 9.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    ticks = itertools.count()
    monkeypatch.setattr(bandwidth, "_cpu_s", lambda run, num_runs: next(turns))
    monkeypatch.setattr(bandwidth, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert bandwidth._seconds(lambda: torch.zeros(1), _CPU, turn_s=8) == 3.0


def test_short_runs_are_timed_together() -> None:
    runs: list[int] = []

    def run() -> torch.Tensor:
        runs.append(os.getpid())
        return torch.zeros(1)

    assert 0 < bandwidth._seconds(run, _CPU, turn_s=0.0) < 1e-3
    assert len(runs) == 2 + 50


@pytest.mark.parametrize(
    ("capability", "precisions"),
    [((3, 7), {"fp32"}), ((7, 0), {"fp32", "fp16"}), ((9, 0), {"fp32", "fp16", "tf32", "bf16"})],
)
def test_a_gpu_is_asked_for_what_it_has_units_for(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precisions: set[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert set(bandwidth._precisions(torch.device("cuda"))) == precisions


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_tf32_is_on_only_where_it_is_measured(precision: Any) -> None:
    def settings() -> tuple[Any, ...]:
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.allow_tf32

    before = settings()
    with bandwidth._only(precision, cuda=True):
        assert settings() == (("tf32", True) if precision == "tf32" else ("ieee", False))
    assert settings() == before


def test_rates_of_a_gpu_go_into_a_plan() -> None:
    matmul = {"fp32": 5e13, "fp16": 7e14, "tf32": 3e14, "bf16": 7.1e14}
    conv = {"fp32": 4e13, "fp16": 6e14, "tf32": 3.5e14, "bf16": 6e14}
    found = replace(
        _made_up("0"), matmul_flops_per_s=matmul, conv_flops_per_s=conv, to_device_bytes_per_s=5.5e10
    ).rates()
    assert [found.flops_per_s(each) for each in ("fp32", "tf32", "fp16", "bf16")] == [
        5e13,
        3.5e14,
        7e14,
        7.1e14,
    ]
    assert found.to_device_bytes_per_s == 5.5e10
    assert found.host_op_s == 2e-5
    assert found.crowded_bytes_per_s is None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.device]:
    """Make believe that there is a GPU of 16 GiB with so much free, for a process with a cap that holds some."""

    def make(*, free: int, share: float = 1.0, held: int = 0) -> torch.device:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free * MIB, 16 * 1024 * MIB))
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: share)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: held * MIB)
        return torch.device("cuda", 0)

    return make


@pytest.mark.parametrize(
    ("settings", "room", "side"),
    [
        ({"free": 10_000}, 10_000, 8192),
        ({"free": 2_000}, 2_000, 4096),
        ({"free": 500}, 500, 2048),
        ({"free": 10_000, "share": 1 / 8, "held": 48}, 2_000, 4096),
        ({"free": 10_000, "share": 1 / 16, "held": 524}, 500, 2048),
        ({"free": 10_000, "share": 1 / 16, "held": 2_000}, 0, 2048),
        ({"free": 10, "share": 0.5}, 10, 2048),
    ],
)
def test_work_is_as_large_as_there_is_room(
    gpu: Callable[..., torch.device], settings: dict[str, Any], room: int, side: int
) -> None:
    device = gpu(**settings)
    assert free_gpu_bytes(device) == room * MIB
    assert bandwidth._work_for(device).side == side
    assert bandwidth._work_for(device, 2**30).side == min(side, 4096)  # a job's limit


@pytest.mark.parametrize(("is_rough", "num_made"), [(False, 1), (True, 2)])
def test_what_little_work_tells_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch, is_rough: bool, num_made: int
) -> None:
    made: list[Measured] = []

    def stand_in(device: torch.device, *, room_bytes: float) -> Measured:
        made.append(replace(_made_up(bandwidth.fingerprint(device)), is_rough=is_rough))
        return made[-1]

    monkeypatch.setattr(bandwidth, "measure", stand_in)
    for _ in range(2):
        recall_or_measure(_CPU)
    assert len(made) == num_made


def test_measuring_says_whether_its_work_was_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not measure(_CPU, budget_s=0.01).is_rough
    monkeypatch.setattr(bandwidth, "_ON_FULL_GPU", bandwidth._ON_CPU)
    assert measure(_CPU, budget_s=0.01).is_rough
