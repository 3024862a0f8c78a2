"""`outsize bench profile JOB`: a training step taken apart, a trace, a timeline, and what would help."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from outsize.commands.bench.setting import benching
from outsize.measurement import Measurement
from outsize.progress import Reporter
from outsize.report.tables import profile_lines
from outsize.report.timeline import draw_timeline
from outsize.runs import write_text

_NUM_TIMED = 12


def profile(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    out: Path | None,
    reporter: Reporter,
    steps: int = _NUM_TIMED,
) -> Measurement:
    """Train a few steps on the job's data, take them apart, and say what would make them shorter."""
    # the profiler's own lines, "ERROR: gpuGetDeviceCount failed" where there is no GPU; read when torch is loaded
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    how: dict[str, Any] = {"overrides": overrides, "device_name": device_name, "out": out}
    with benching("profile", job_path, reporter=reporter, **how) as bench:
        from outsize.bench.taken_apart import parts_of, rates_of
        from outsize.bench.verdict import judge
        from outsize.planning.jobs import prepare
        from outsize.session.profiling import around_of, take_apart
        from outsize.session.samples import open_samples

        trace = bench.run.bench / "profile-trace.json"
        prepared = prepare(bench.job, device_name, reporter)
        samples = open_samples(bench.job, prepared, reporter)
        with closing(samples.windows):
            made, found = take_apart(bench.job, prepared, samples, trace, steps, reporter)
        swaps = prepared.train_plan.swap is not None
        parts, rates = parts_of(found, swaps=swaps), rates_of(found)
        busy_s = parts.step_s - parts.waiting_s
        around = around_of(bench.job, prepared, made, rates, busy_s, found.cores_s)
        verdict = judge(parts, around)
        about = {
            "verdict": verdict.as_dict(),
            "parts": parts.shares(),
            "step_s": found.step_s.as_dict(),
            "wait_s": found.wait_s.as_dict(),
            "copied_bytes_per_s": rates,
            "around": vars(around),
            "crowding": made.crowding,
        }
        measured = bench.measurement(prepared, [vars(parts)], about=about)
        bench.leave(measured)
        picture = bench.target.with_suffix(".svg")
        write_text(picture, draw_timeline(found.spans, f"{found.num_steps} steps: {measured.job.text}"))
    text = "\n".join(
        [*profile_lines(measured), f"written: {bench.target}, {picture}, {trace} (ui.perfetto.dev)"]
    )
    reporter.say("bench", text, **measured.as_dict(), path=str(bench.target), trace=str(trace))
    return measured
