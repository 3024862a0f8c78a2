"""The section about host memory: sums over epochs, and nothing where nothing was moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from outsize.report.gather import gather
from outsize.report.page import make_page
from outsize.report.sections.moves import show_moves
from outsize.strategies.swap.pinned import PinnedPool
from outsize.strategies.swap.traffic import SwapTally
from outsize.tasks import chapter_of

MIB = 2**20


def _counted(**changes: Any) -> dict[str, Any]:
    plain = SwapTally().counters(PinnedPool(torch.device("cpu"), 4 * MIB)).as_dict()
    sums = {"num_forwards": 10, "num_out": 30, "num_in": 30, "out_bytes": 20 * MIB, "in_bytes": 20 * MIB}
    times = {
        "num_timed": 1,
        "copy_s": 0.1,
        "stall_s": 0.02,
        "num_stalls": 4,
        "out_bytes_per_s": 50e9,
        "in_bytes_per_s": 40e9,
    }
    return {**plain, **sums, **times, "most_pinned_bytes": 3 * MIB, **changes}


def _with_epochs(run: Path, *moved: dict[str, Any]) -> Path:
    lines = [
        {"kind": "epoch", "epoch": number, "step": number, "mean_iou": 0.5, "moved": each}
        for number, each in enumerate(moved)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_a_run_that_moved_tells_how(bare_run: Path) -> None:
    second = _counted(
        num_out=28, num_full=2, full_bytes=MIB, num_on_demand=3, num_unmet=1, num_changed=5, stall_s=0.06,
        num_stalls=2,
    )  # fmt: skip
    run = _with_epochs(bare_run, _counted(), second)
    shown = show_moves(gather(run))
    assert shown is not None
    for text in (
        "2.9 tensors, 2.0 MiB",
        "50 GB/s out, 40 GB/s back",
        "3 times each forward, 40.0 ms in all",
        "60.0 %",
        "3.0 MiB used of 4.0 MiB planned",
        "2 (1.0 MiB)",
        "5.0 %",
        "<dt>planned and not saved</dt><dd>1</dd>",
        "<dt>of another size than planned</dt><dd>5</dd>",
    ):
        assert text in shown, text
    assert "not plain memory" not in shown
    assert "Moved to host memory" in make_page([run], chapter_of, version="1", when="now")


def test_what_was_not_timed_is_not_told(bare_run: Path) -> None:
    untimed = dict.fromkeys(("copy_s", "stall_s", "num_stalls", "out_bytes_per_s", "in_bytes_per_s"))
    shown = show_moves(gather(_with_epochs(bare_run, _counted(num_timed=0, **untimed))))
    assert shown is not None
    assert "GB/s" not in shown
    assert "kernels" not in shown


def test_a_run_that_moved_nothing_has_no_such_section(bare_run: Path, full_run: Path) -> None:
    assert show_moves(gather(bare_run)) is None
    assert show_moves(gather(full_run)) is None
    assert show_moves(gather(_with_epochs(bare_run, _counted(num_forwards=0)))) is None
