"""A run folder written by hand, whose names would harm a page that does not escape them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

NASTY = "<script>alert(\"1\")</script> & 'co' <b>"
NAMES = (NASTY, "a_class_with_a_long_name_without_any_space_in_it", "c", "d", "e", "f", "g", "h", "i")


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def _job() -> str:
    tables = "".join(
        f"[[data.classes]]\nname = {json.dumps(name)}\nvalue = {number}\ncolour = [{number}, 90, 200]\n"
        for number, name in enumerate(NAMES)
    )
    return f'task = "segment"\nrun = {json.dumps(NASTY)}\n[model]\nname = "unet"\nwidth = 4\n[data]\n{tables}'


def _scores() -> dict[str, Any]:
    counts = (np.eye(len(NAMES), dtype=int) * 900 + 3).tolist()
    row = {"iou": 0.5, "accuracy": 0.6, "f1": None, "bf": 0.4321, "num_px": 12345}
    outlines = {"mean": 0.8765, "mean_where_present": None, "classes": dict.fromkeys(NAMES, 0.1)}
    cited = {"mean_iou": 0.66822, "weighted_iou": 0.83346}
    place = {"row": 0, "col": 256, "height": 40, "width": 40, "mean_iou": 0.5, "accuracy": 0.9, "num_px": 9}
    bins = [{"from": 0.8, "to": 0.866667, "num_px": 5, "confidence": 0.83, "accuracy": 0.7}]
    return {
        "mean_iou": 0.75,
        "weighted_iou": 0.8,
        "pixel_accuracy": 0.9,
        "mean_accuracy": 0.7,
        "mean_f1": 0.7,
        "mean_bf": 0.2468,
        "num_px": 9999,
        "boundary": {"pixels": {"2": outlines}, "diagonal": {"mean": 0.2468, "classes": {}}},
        "published": {"source": NASTY, "scores": cited, "classes": {NASTY: {"iou": 0.90804}}},
        "classes": dict.fromkeys(NAMES, row),
        "confusion": counts,
        "scenes": [
            {"name": f"{NASTY}-{number}.tif", "mean_iou": 0.5, "pixel_accuracy": 0.5, "num_px": 7}
            for number in range(14)
        ],
        "reliability": {"expected_calibration_error": 0.12, "num_px": 5, "bins": bins},
        "aoi": f"{NASTY}.gpkg",
        "places": [
            {"rank": rank, "picture": f"pictures/test-{rank}-1.png", "scene": NASTY, **place}
            for rank in ("best", "median", "worst")
        ],
    }


def _plan(purpose: str) -> dict[str, Any]:
    tiles = {"core_px": 64, "halo_before_px": [8, 8], "halo_after_px": [8, 8], "stride_px": 4}
    return {
        "purpose": purpose,
        "batch": 1,
        "limit_bytes": 2**30,
        "peak_bytes": 2**20,
        "exact": True,
        "why": [f"because of {NASTY}"],
        "rejected": [{"what": NASTY, "why": f"too {NASTY}"}],
        "tiles": tiles if purpose == "predict" else None,
        "micro_batches": 2,
    }


def _predicted() -> dict[str, Any]:
    times = {"tiles_s": 3.0, "waited_for_reads_s": 1.0, "waited_for_device_s": 1.5, "cog_s": 0.5}
    size = {"height": 100, "width": 200, "num_tiles": 1}
    scenes = [{"scene": f"/x/{NASTY}{number}.tif", "map": "m.tif", **size, **times} for number in range(5)]
    return {"plan": _plan("predict"), "scenes": scenes}


@pytest.fixture
def bare_run(tmp_path: Path) -> Path:
    """A run of which nothing is there but its job."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "job.toml").write_text(_job())
    return folder


@pytest.fixture
def full_run(tmp_path: Path) -> Path:
    """A run with every file that a report reads."""
    folder = tmp_path / "R&D <i> run"
    folder.mkdir()
    (folder / "job.toml").write_text(_job())
    machine = {"device": "cpu", "name": NASTY, "memory_bytes": 2**34, "free_bytes": 2**33, "num_cores": 2}
    origin = {"command": f"outsize train {NASTY}", "folder": f"/{NASTY}", "when": "2030-01-02T03:04:05+00:00"}
    _json(folder / "facts.json", {"machine": machine, **origin, "versions": {"torch": "9.9", NASTY: "1"}})
    _json(folder / "plan.json", {name: _plan(name) for name in ("train", "predict")})
    _json(folder / "scores.json", {"test": _scores()})
    _json(folder / "predictions" / "predict.json", _predicted())
    proof = {"relative": 0.0, "tolerance": 1e-5, "passed": True}
    _json(folder / "verify.json", {"tiled_equals_whole": {"float32": proof}})
    classes = {name: {"iou": [0.5, None], "difference": None} for name in NAMES}
    compared = {"runs": ["a", NASTY], "classes": classes, "agreement": 0.9, "num_px": 10}
    _json(folder / "compare.json", compared)
    _json(folder / "checkpoints" / "best.json", {"trained": {}})
    lines: list[dict[str, Any]] = [
        {"kind": "classes", "step": 0, "epoch": 0, "class_shares": dict.fromkeys(NAMES, 0.1)}
    ]
    for step in range(10, 60, 10):
        times = {"wait_s": 0.1, "copy_s": 0.05, "step_s": 0.4}
        lines.append(
            {"kind": "step", "epoch": 0, "step": step, "lr": 1e-3, **times, "terms": {NASTY: 1 / step}}
        )
        mix = {"class_shares": dict.fromkeys(NAMES, 0.2)}
        lines.append({"kind": "epoch", "epoch": step // 10, "step": step, "mean_iou": step / 100, "mix": mix})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"kind": "step", "cut o')
    strip = np.zeros((40, 4 * 40 + 24, 3), np.uint8)
    (folder / "pictures").mkdir()
    for rank in ("best", "median", "worst"):
        Image.fromarray(strip).save(folder / "pictures" / f"test-{rank}-1.png")
    return folder
