"""Training in two phases with two outputs, and with maps beside the pixels: from job file to map."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import rasterio
from safetensors import safe_open
from tests.conftest import write_job

import outsize
import outsize.train.loop as loop_module
from outsize.commands.train import train
from outsize.errors import JobError, TraceError
from outsize.progress import Reporter
from outsize.runs import RunFolder

_UNET = 'name = "unet"\nlevels = 3\nwidth = 4'
_PHASES = """checkpoint_steps = 1
[[train.phases]]
name = "encoder"
trainable = ["encoder"]
output = "encoder"
epochs = 1
[[train.phases]]
name = "whole"
epochs = 1
"""


class Killed(Exception):
    """Stands in for a signal."""


def _train(job: Path, run: Path, mode: str = "new") -> Path:
    return train(job, overrides=[f"run={run}"], device_name="cpu", mode=mode, reporter=Reporter("quiet")).path


def _bits(run: Path) -> dict[str, Any]:
    files = {path.name: path.read_bytes() for path in sorted((run / "checkpoints").iterdir())}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {**files, "lines": [{k: v for k, v in line.items() if not k.endswith("_s")} for line in lines]}


@pytest.fixture
def two_phases(tmp_path: Path, scenes: Path) -> Path:
    options = {
        _UNET: 'name = "erfnet"\nwidth = 8',
        "lr = 1e-3": f"lr = 1e-3\n{_PHASES}",
        "epochs = 2": "epochs = 1",
    }
    return write_job(tmp_path / "job.toml", scenes, **options)


def _dying(monkeypatch: pytest.MonkeyPatch, at_call: int) -> None:
    original, calls = loop_module._where, iter(range(1, 1000))

    def where(position: Any) -> dict[str, int]:
        if next(calls) == at_call:
            raise Killed
        return original(position)

    monkeypatch.setattr(loop_module, "_where", where)


@pytest.mark.long
def test_two_phases_resume_in_either_with_the_same_bits(
    two_phases: Path, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = _train(two_phases, tmp_path / "undisturbed")
    expected = _bits(undisturbed)
    assert [line["phase"] for line in expected["lines"]] == [0, 1]
    card = json.loads((undisturbed / "checkpoints" / "best.json").read_text())
    assert card["options"] == {"width": 8, "output": "whole"}
    assert card["trained"]["phase"] == 1  # whatever the encoder alone had scored
    run, mode = tmp_path / "killed", "new"
    # of four steps each: in the third of the first phase, and then in the fourth of the second
    for at_call, phase in ((3, 0), (5, 1)):
        with monkeypatch.context() as patch:
            _dying(patch, at_call)
            with pytest.raises(Killed):
                _train(two_phases, run, mode)
        mode = "resume"
        with safe_open(RunFolder(run).state, framework="pt") as state:
            assert json.loads(state.metadata()["position"])["phase"] == phase
        if phase:
            _is_predicted_by_the_encoder(run, scenes / "test-2.tif", tmp_path / "map.tif")
    assert _bits(_train(two_phases, run, mode)) == expected


def _is_predicted_by_the_encoder(run: Path, scene: Path, target: Path) -> None:
    """A run that ended after its first phase answers with what that phase has trained: in squares of 8 px."""
    card = json.loads((run / "checkpoints" / "best.json").read_text())
    assert card["options"]["output"] == "encoder"
    outsize.predict(run, scene, target, device="cpu")
    with rasterio.open(target) as file:
        classes = file.read(1)
    squares = classes.reshape(20, 8, 26, 8).swapaxes(1, 2).reshape(-1, 64)
    assert all(len(set(square) - {255}) <= 1 for square in squares)  # 255: no pixels there
    assert len(set(classes.ravel()) - {255}) > 1


@pytest.mark.long
def test_phases_of_one_output_have_one_constant_of_weights(two_phases: Path, tmp_path: Path) -> None:
    text = two_phases.read_text().replace("checkpoint_steps = 1", 'class_weights = "log"\nlog_offset = 1.3')
    two_phases.write_text(text.replace('output = "encoder"', 'output = "encoder"\nlog_offset = 1.2'))
    run = _train(two_phases, tmp_path / "run")
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    shares = first["class_shares"]
    for name, weight in first["class_weights"].items():  # those of the last phase are told
        assert weight == pytest.approx(1 / math.log(1.3 + shares[name]))
    two_phases.write_text(text.replace('output = "encoder"', "log_offset = 1.2"))
    with pytest.raises(JobError, match=r"train\.phases\.log_offset changes: found 1\.3, needed one constant"):
        _train(two_phases, tmp_path / "other")


def test_a_phase_that_there_is_no_time_for_is_told(
    two_phases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        loop_module.TrainSettings, "spent", lambda _, phase, __: float(phase)
    )  # all, when the second begins
    settings = {"device_name": "cpu", "mode": "new", "reporter": Reporter("json")}
    train(two_phases, overrides=[f"run={tmp_path / 'run'}", "train.max_minutes=1"], **settings)
    events = {event["event"]: event for event in map(json.loads, capsys.readouterr().out.splitlines())}
    text = "train.max_minutes was over before phase 'whole' began"
    assert text in events["warning"]["text"]
    assert " steps, without phase 'whole', best mean IoU 0." in events["trained"]["text"]
    assert events["trained"]["missed"] == ["whole"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["warning"].startswith(text) for line in lines if line["kind"] == "plan")
    assert "plan" in {line["kind"] for line in lines}


def test_an_unknown_output_is_refused_before_anything_is_read(two_phases: Path, tmp_path: Path) -> None:
    two_phases.write_text(two_phases.read_text().replace('output = "encoder"', 'output = "head"'))
    with pytest.raises(JobError, match=r"output.*'head'.*encoder, whole"):
        _train(two_phases, tmp_path / "run")


@pytest.mark.long
def test_a_network_with_maps_trains_and_predicts(tmp_path: Path, scenes: Path) -> None:
    options = {
        _UNET: 'name = "gscnn"\nwidth = 8',
        "lr = 1e-3": 'lr = 1e-3\nloss = "gscnn"',
        "epochs = 2": "epochs = 1",
        "samples_per_epoch = 8": "samples_per_epoch = 4",
        "[limits]": "[limits]\nallow_approximate = true",
    }
    job = write_job(tmp_path / "job.toml", scenes, **options)
    run = _train(job, tmp_path / "run")
    card = json.loads((run / "checkpoints" / "best.json").read_text())
    assert card["maps"] == ["canny"]
    done = outsize.predict(run, scenes / "test-2.tif", tmp_path / "map.tif", device="cpu")
    assert not done["exact"]
    one = job.read_text().replace("batch = 2", "batch = 1")
    job.write_text(one)
    with pytest.raises(TraceError, match=r"gscnn cannot be trained on one picture.*train\.batch"):
        _train(job, tmp_path / "other")
