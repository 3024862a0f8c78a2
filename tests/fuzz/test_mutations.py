"""Files that are spoilt at random, by seeds: whatever a stranger gives us ends well or in one line.

To run one case again:

    python -m tests.fuzz.lay BASES job run checkpoint raster vector coco
    python -m tests.fuzz.cases BASES SCRATCH vector:17:18
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.fuzz.cases import Ended

ROOT = Path(__file__).parents[2]
_FEW = {"job": 18, "coco": 12, "vector": 12, "raster": 8}  # those that load no weights
_MANY = {"job": 1000, "run": 900, "checkpoint": 600, "raster": 1000, "vector": 1000, "coco": 500}


def _run(folder: Path, numbers: dict[str, int]) -> list[Ended]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    python = [sys.executable, "-W", "ignore", "-m"]
    laid = [*python, "tests.fuzz.lay", str(folder / "bases"), *numbers]
    subprocess.run(laid, check=True, cwd=ROOT, env=environment, capture_output=True)
    cases = [f"{kind}:0:{number}" for kind, number in numbers.items()]
    command = [*python, "tests.fuzz.cases", str(folder / "bases"), str(folder / "scratch"), *cases]
    done = subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, text=True)
    found = [Ended(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    assert Counter(each.kind for each in found) == Counter(numbers)
    return found


def _refuse_bad(found: list[Ended]) -> None:
    bad = [each for each in found if not each.is_good]
    counts = sorted(Counter((each.kind, each.outcome) for each in found).items())
    sys.stdout.write(f"{counts}\n")
    told = "\n\n".join(f"{each.kind} {each.seed}: {each.outcome}\n{each.told}" for each in bad[:10])
    assert not bad, f"{counts}\n{told}"
    # a test in which all is refused alike, or nothing, would see nothing
    for kind in {each.kind for each in found}:
        assert {each.outcome for each in found if each.kind == kind} == {"ok", "refused"}, kind


def test_fifty_spoilt_files_end_well_or_in_one_line(tmp_path: Path) -> None:
    _refuse_bad(_run(tmp_path, _FEW))


@pytest.mark.long
def test_five_thousand_spoilt_files_end_well_or_in_one_line(tmp_path: Path) -> None:
    _refuse_bad(_run(tmp_path, _MANY))
