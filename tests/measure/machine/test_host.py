"""Host memory that is left: the least of what the machine has and of what every group around the process leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from outsize.measure.machine import free_host_bytes, host, host_room_bytes
from outsize.measure.machine.host import USABLE_SHARE

MIB = 2**20


def _group(folder: Path, version: int, limit: object, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = version == 1
    (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(f"{limit}\n")
    (folder / ("memory.usage_in_bytes" if first else "memory.current")).write_text(f"{used}\n")
    stat = f"anon 5\n{'total_inactive_file' if first else 'inactive_file'} {cached}\n"
    (folder / "memory.stat").write_text(stat)


def _own(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "own"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_limit_on_addresses_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = psutil.Process().memory_info().vms
    monkeypatch.setattr(host, "address_space_bytes", lambda: taken + 200 * MIB)
    assert 100 * MIB < free_host_bytes(tmp_path / "nowhere", tmp_path / "nothing") < 300 * MIB
    monkeypatch.setattr(host, "address_space_bytes", lambda: taken // 2)
    assert free_host_bytes(tmp_path / "nowhere", tmp_path / "nothing") == 0


def test_without_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    found = free_host_bytes(tmp_path / "nowhere", tmp_path / "nothing")
    assert found == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_the_tightest_group_around_the_process_counts(tmp_path: Path) -> None:
    own = _own(tmp_path, "0::/slice/job")
    _group(tmp_path / "slice", 2, 50 * MIB, 30 * MIB)
    _group(tmp_path / "slice" / "job", 2, "max", 10 * MIB)
    assert free_host_bytes(tmp_path, own) == 20 * MIB
    _group(tmp_path / "slice" / "job", 2, 12 * MIB, 10 * MIB)
    assert free_host_bytes(tmp_path, own) == 2 * MIB


def test_files_in_the_cache_are_given_up(tmp_path: Path) -> None:
    _group(tmp_path, 2, 50 * MIB, 49 * MIB, cached=30 * MIB)
    assert free_host_bytes(tmp_path, _own(tmp_path, "0::/")) == 31 * MIB


def test_a_container_sees_its_root_and_not_its_name(tmp_path: Path) -> None:
    _group(tmp_path, 2, 50 * MIB, 20 * MIB)
    assert free_host_bytes(tmp_path, _own(tmp_path, "0::/docker/0123")) == 30 * MIB


def test_both_versions_at_once(tmp_path: Path) -> None:
    own = _own(tmp_path, "4:cpu,memory:/jobs/17", "3:cpuset:/", "0::/")
    _group(tmp_path / "memory" / "jobs" / "17", 1, 50 * MIB, 49 * MIB, cached=4 * MIB)
    _group(tmp_path / "memory", 1, 1 << 63, 49 * MIB)  # no limit
    assert free_host_bytes(tmp_path, own) == 5 * MIB
    _group(tmp_path / "unified", 2, 7 * MIB, 4 * MIB)
    assert free_host_bytes(tmp_path, own) == 3 * MIB


def test_more_than_the_limit_leaves_nothing(tmp_path: Path) -> None:
    _group(tmp_path, 2, 10 * MIB, 11 * MIB)
    assert free_host_bytes(tmp_path, _own(tmp_path, "0::/")) == 0


def test_a_plan_may_lock_most_of_it_and_what_the_job_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_host_bytes", lambda: 1000)
    assert host_room_bytes() == int(1000 * USABLE_SHARE)
    assert host_room_bytes(10) == 10
    assert host_room_bytes(10_000) == int(1000 * USABLE_SHARE)
