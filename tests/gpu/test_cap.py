"""On a GPU: what is run before a training takes no more than the limit, and less is run where that does not do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outsize.job import load_job
from outsize.measure.memory import capped, sweep
from outsize.models import build_model
from outsize.plan.effort import cap_bytes
from outsize.planning.trying.profiling import ProfiledStep, see

MIB = 2**20


def _subject(job_path: Path, cap: int) -> ProfiledStep:
    job = load_job(job_path)
    model = build_model("unet", num_classes=len(job.data.classes), in_channels=4, levels=4, width=32)
    device = torch.device("cuda", torch.cuda.current_device())
    return ProfiledStep(job, model, (8, 4, 512, 512), device, False, None, cap)


def test_a_profile_stays_within_its_cap(job_path: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    sweep(device)
    torch.cuda.reset_peak_memory_stats(device)
    assert see(_subject(job_path, 0)) is not None
    needed = torch.cuda.max_memory_reserved(device)
    for cap, fits in ((2 * needed, True), (needed // 2, False)):
        sweep(device)
        torch.cuda.reset_peak_memory_stats(device)
        assert (see(_subject(job_path, cap)) is not None) == fits
        assert torch.cuda.max_memory_reserved(device) <= cap
        assert torch.cuda.get_per_process_memory_fraction(device) == 1.0


def test_what_is_capped_is_given_back() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    sweep(device)
    limit = torch.cuda.memory_reserved(device) + 512 * MIB
    with capped(device, cap_bytes(limit)), pytest.raises(torch.OutOfMemoryError):
        torch.empty(limit, dtype=torch.uint8, device=device)
    torch.empty(limit, dtype=torch.uint8, device=device)
