"""Published steps are predicted for their machines, and paced by what the same network took elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outsize.measurement import Figure, Fingerprint, MeasuredJob, Measurement
from outsize.plan.machines import find_machine
from outsize.planning.published import _job, _of_table, _Seconds, median_error, said_of
from outsize.report.published import NAMES, Publication, published

_STEP: dict[str, Any] = {
    "task": "segment",
    "bands": 3,
    "classes": 4,
    "model": {"name": "unet", "levels": 2, "width": 8},
    "data": {"train": ["*.tif"]},
    "train": {"tile_px": 64, "optimizer": "sgd", "loss": "cross_entropy"},
}
_ROWS = [
    {"gpu": "p100-16", "batch": 4, "step_s": 0.5, "how": "told"},
    {"gpu": "k80", "batch": 8, "step_s": 2.0, "how": ""},
]
_TABLE = Publication("tiny", "", "", {"step": _STEP, "steps": _ROWS}, ())


def _measured(**changes: Any) -> Measurement:
    job = MeasuredJob("unet", 4, 64, "tf32")
    machine = Fingerprint("cuda:0", "", 16, 2**34, gpu="NVIDIA H200", catalogue="h200")
    took = Figure(3 * _Seconds(_STEP).of("h200", 4) / 0.9, 0.0, 3).as_dict()
    about = {"step_s": took, "parts": {"waiting for data": 0.1}}
    return replace(Measurement("profile", machine, job, {}, "", "", (), about=about), **changes)


def test_steps_are_predicted_by_data_sheets() -> None:
    first, second = _of_table(_TABLE, ())
    assert (first.machine, first.batch, second.machine) == ("p100-16", 4, "k80")
    assert first.predicted_s is not None
    assert second.predicted_s is not None
    assert second.predicted_s > first.predicted_s
    assert first.error == pytest.approx(first.predicted_s / 0.5 - 1)
    assert first.paced_s is None
    assert median_error([first]) == pytest.approx(abs(first.predicted_s / 0.5 - 1))
    assert "by data sheets alone" in said_of([first, replace(second, waits=True)])


def test_a_measurement_of_the_network_paces_it() -> None:
    first, _ = _of_table(_TABLE, [_measured()])
    assert first.predicted_s is not None
    assert first.paced_s == pytest.approx(3 * first.predicted_s)
    assert "1 of them paced" in said_of([first])
    rows = (
        {"batch": 4, "step_s": Figure(5 * _Seconds(_STEP).of("h200", 4), 0.0, 3).as_dict()},
        {"batch": 8, "failed": "x"},
    )
    first, _ = _of_table(_TABLE, [_measured(kind="batch", rows=rows)])
    assert first.paced_s == pytest.approx(5 * (first.predicted_s or 0))


@pytest.mark.parametrize(
    "changes",
    [
        {"job": MeasuredJob("erfnet", 4, 64, "tf32")},
        {"job": MeasuredJob("unet", 4, 128, "tf32")},
        {"machine": Fingerprint("cpu", "", 2, 2**34)},
        {"kind": "scaling"},
    ],
)
def test_another_network_size_or_machine_does_not(changes: dict[str, Any]) -> None:
    first, _ = _of_table(_TABLE, [_measured(**changes)])
    assert first.paced_s is None


def test_every_published_step_is_a_job_on_a_machine_of_the_catalogue() -> None:
    tables = [published(name) for name in NAMES]
    known = [each for each in tables if "step" in each.facts]
    assert len(known) >= 6
    for each in known:
        assert _job(each.facts["step"]).model.name == each.facts["step"]["model"]["name"]
        for row in each.facts["steps"]:
            find_machine(row["gpu"])
            assert row["step_s"] > 0
            assert row["how"]
