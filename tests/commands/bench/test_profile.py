"""`outsize bench profile`: a small job taken apart from end to end."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from outsize.commands.bench import profile
from outsize.measurement import read_measurement
from outsize.progress import Reporter
from outsize.report.tables import profile_lines


def test_a_step_is_taken_apart(job_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = profile(job_path, overrides=(), device_name="cpu", out=out, reporter=Reporter("quiet"), steps=3)
    assert read_measurement(out / "bench/profile.json") == found
    assert sum(found.about["parts"].values()) == pytest.approx(1.0)
    assert found.about["parts"]["launch gaps"] == 0.0
    assert found.about["step_s"]["repeats"] == 3
    assert found.about["around"]["twice_s"] > 0
    assert found.about["verdict"]["sentence"] in profile_lines(found)[-1]
    assert any("no GPU" in line for line in profile_lines(found))
    trace = json.loads((out / "bench/profile-trace.json").read_text())
    steps = [each for each in trace["traceEvents"] if each.get("name") == "step" and each["ph"] == "X"]
    assert len(steps) == 4
    picture = ET.parse(out / "bench/profile.svg").getroot()
    assert picture.tag.endswith("svg")
    assert not (out / "checkpoints").exists()
