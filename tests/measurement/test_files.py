"""Measurements are read back as they were written, older ones too; newer and broken ones are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outsize.errors import RunError
from outsize.measurement import (
    Figure,
    Fingerprint,
    MeasuredJob,
    Measurement,
    read_measurement,
    write_measurement,
)
from outsize.measurement.files import schema

_ROOT = Path(__file__).parents[2]
_WRITTEN = Measurement(
    kind="batch",
    machine=Fingerprint("cuda:0", "a CPU", 8, 2**34, gpu="a GPU", gpu_bytes=2**33, num_gpus=1),
    job=MeasuredJob("unet", 4, (64, 96), "bf16", options={"levels": 3}),
    versions={"torch": "2.11"},
    command="outsize bench batch job.toml",
    when="2026-11-19T12:00:00+00:00",
    rows=({"batch": 4, "step_s": Figure(0.5, 0.02, 5).as_dict()},),
    about={"rounds": 5},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "batch.json"
    write_measurement(path, _WRITTEN)
    return path


def test_what_is_written_is_read(path: Path) -> None:
    assert json.loads(path.read_text())["schema"] == 1
    assert read_measurement(path) == _WRITTEN


@pytest.mark.parametrize(
    "old", sorted((_ROOT / "benchmarks/results").glob("*h200-memory-*.json")), ids=lambda path: path.stem
)
def test_files_of_before_the_schema_are_read(old: Path) -> None:
    found = read_measurement(old)
    assert found.kind == "memory"
    assert found.machine.name == "NVIDIA H200"
    assert found.machine.gpu_bytes is not None
    assert found.job.batch == 4
    assert found.about["plain"]["peak_bytes"] > 0
    assert {"plain", "again"} <= {each["way"] for each in found.rows}


def test_the_newest_of_before_is_among_them() -> None:
    assert len(list((_ROOT / "benchmarks/results").glob("*h200-memory-*.json"))) >= 10


def _spoilt(path: Path, **changes: Any) -> Path:
    tree = json.loads(path.read_text())
    tree.update(changes)
    path.write_text(json.dumps({name: value for name, value in tree.items() if value != "gone"}))
    return path


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"schema": 2}, ("newer schema", "found 2", "version 1 or older", "a newer")),
        ({"schema": "1"}, ("newer schema", "found '1'")),
        ({"machine": "gone"}, ("cannot be understood", "machine: Field required")),
        ({"job": {"model": "unet"}}, ("cannot be understood", "job.batch")),
        ({"rows": 3}, ("cannot be understood", "rows")),
        ({"schema": "gone"}, ("no schema, and of kind 'batch'",)),
        ({"schema": "gone", "kind": "memory", "machine": 3}, ("cannot be understood",)),
    ],
)
def test_newer_and_broken_files_are_one_line(
    path: Path, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(RunError) as told:
        read_measurement(_spoilt(path, **changes))
    text = str(told.value)
    assert "\n" not in text
    assert all(each in text for each in (str(path), *parts)), text


def test_no_file_and_no_json(path: Path) -> None:
    path.write_text("{")
    with pytest.raises(RunError, match=r"is broken.*run `outsize bench` again"):
        read_measurement(path)
    path.unlink()
    with pytest.raises(RunError, match=r"is missing.*run `outsize bench` first"):
        read_measurement(path)


def test_the_schema_of_the_docs_is_true() -> None:
    page = _ROOT / "docs/measurement.schema.json"
    assert json.loads(page.read_text()) == json.loads(json.dumps(schema()))
