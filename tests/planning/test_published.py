"""Published steps are predicted for their machines, and paced by what the same network took elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outsize.measurement import Figure, Fingerprint, MeasuredJob, Measurement
from outsize.plan.machines import find_machine
from outsize.planning.following import KNOWN, Followed, PublishedSteps, key_of
from outsize.planning.published import _of_table, median_error, predict_published, said_of
from outsize.report.published import NAMES, Publication, published

_STEP: dict[str, Any] = {
    "task": "segment",
    "bands": 3,
    "classes": 4,
    "model": {"name": "unet", "levels": 2, "width": 16},
    "data": {"train": ["*.tif"]},
    "train": {"tile_px": 256, "optimizer": "sgd", "loss": "cross_entropy"},
}
_ROWS = [
    {"gpu": "p100-16", "batch": 4, "step_s": 0.5, "how": "told"},
    {"gpu": "k80", "batch": 8, "step_s": 2.0, "how": ""},
]
_TABLE = Publication("tiny", "", "", {"step": _STEP, "steps": _ROWS}, ())


def _measured(**changes: Any) -> Measurement:
    job = MeasuredJob("unet", 4, 256, "tf32")
    machine = Fingerprint("cuda:0", "", 16, 2**34, gpu="NVIDIA H200", catalogue="h200")
    took = Figure(3 * PublishedSteps(_TABLE).of("h200", 4).device_s / 0.8, 0.0, 3).as_dict()
    about = {"step_s": took, "parts": {"waiting for data": 0.1, "launch gaps": 0.1, "compute": 0.8}}
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
    said = said_of([first, replace(second, waits=True)])
    assert "of the 1 published steps that the device bounds" in said
    assert "of all 2" in said


def test_a_measurement_of_the_network_paces_it() -> None:
    first, _ = _of_table(_TABLE, [_measured()])
    assert first.predicted_s is not None
    device_s = PublishedSteps(_TABLE).of("p100-16", 4).device_s
    assert first.paced_s == pytest.approx(3 * device_s)
    assert median_error([first]) != median_error([first], paced=False)
    rows = (
        {"batch": 4, "step_s": Figure(5 * PublishedSteps(_TABLE).of("h200", 4).device_s, 0.0, 3).as_dict()},
        {"batch": 8, "failed": "x"},
    )
    first, _ = _of_table(_TABLE, [_measured(kind="batch", rows=rows)])
    assert first.paced_s == pytest.approx(5 * device_s)


@pytest.mark.parametrize(
    "changes",
    [
        {"job": MeasuredJob("erfnet", 4, 256, "tf32")},
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
        assert PublishedSteps(each).job.model.name == each.facts["step"]["model"]["name"]
        for row in each.facts["steps"]:
            find_machine(row["gpu"])
            assert row["step_s"] > 0
            assert row["how"]


def test_swapping_every_tensor_adds_its_copies_over_the_crowded_link() -> None:
    known = {key_of("ac922", 4): Followed(2.0, 2.0, 78_500_000_000), key_of("h200", 4): Followed(1.0, 1.0, 1)}
    rows = [{"gpu": "ac922", "batch": 4, "step_s": 6.0, "how": ""}]
    own = [{"gpu": "h200", "batch": 4, "device_s": 1.5}]
    facts = {"step": {**_STEP, "swaps": True}, "steps": rows, "measured": own}
    (found,) = _of_table(replace(_TABLE, facts=facts), (), known)
    assert found.predicted_s == pytest.approx(2.0 + 2 * 78.5 / 39.25)
    assert found.paced_s == pytest.approx(1.5 * 2.0 + 2 * 78.5 / 39.25)  # copies are as long as they are


def test_steps_that_are_printed_were_followed_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("following takes seconds: python docs/published_steps.py writes what is missing")

    monkeypatch.setattr(PublishedSteps, "follow", refuse)
    found = predict_published()
    bound = [each for each in found if not each.waits]
    assert all(each.predicted_s for each in found)
    assert (len(found), len(bound)) == (26, 12)
    for error, most in ((median_error(bound), 0.3), (median_error(bound, paced=False), 0.3)):
        assert error is not None
        assert error < most


@pytest.mark.parametrize(
    "name",
    [
        each if each == "digits-pytorch" else pytest.param(each, marks=pytest.mark.long)
        for each in json.loads(KNOWN.read_text(encoding="utf-8"))["steps"]
    ],
)
def test_what_was_followed_beforehand_is_found_again(name: str) -> None:
    table = published(name)
    known, anew = PublishedSteps(table), PublishedSteps(table, known={})
    for row in (*table.facts["steps"], *table.facts.get("measured", ())):
        was, now = known.of(row["gpu"], row["batch"]), anew.of(row["gpu"], row["batch"])
        assert now == pytest.approx(was, rel=0.02), "run python docs/published_steps.py"
