"""`outsize bench scaling JOB`: one rank against several, and where the time goes that is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outsize.commands.bench.setting import benching, whole_numbers
from outsize.measurement import Measurement
from outsize.progress import Reporter
from outsize.report.tables import scaling_table, text_table


def scaling(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    out: Path | None,
    num_ranks: str,
    rounds: int,
    minutes: float,
    reporter: Reporter,
) -> Measurement:
    """Measure weak and strong scaling of a job's step on ranks of this machine."""
    how: dict[str, Any] = {"overrides": overrides, "device_name": device_name, "out": out}
    with benching("scaling", job_path, reporter=reporter, **how) as bench:
        sizes = [each for each in whole_numbers("--gpus", num_ranks, "1,2,4") or [] if each > 1]
        from outsize.bench.scaling import ToScale, measure_scaling, refuse_sizes
        from outsize.planning.jobs import prepare
        from outsize.session.samples import open_samples

        job = bench.job.model_copy(update={"run": str(bench.run.path)})
        refuse_sizes(sizes, num_ranks, job.train.batch, bench.device.type)
        prepared = prepare(job, device_name, reporter)
        samples = open_samples(job, prepared, reporter).windows
        given = ToScale(
            task=job.task,
            model=prepared.model.cpu(),
            section=job.train,
            num_bands=len(prepared.bands),
            num_classes=len(job.data.classes),
            samples=samples,
            device_name=bench.device.type,
            bf16=prepared.where.bf16,
            rounds=rounds,
            max_s=60 * minutes / (2 * len(sizes)),
        )
        rows = measure_scaling(given, sizes, lambda text: reporter.say("scaling", text))
        about = {"rounds": rounds, "backend": "gloo" if bench.device.type == "cpu" else "nccl"}
        measured = bench.measurement(prepared, rows, about=about, num_gpus=max(sizes))
        bench.leave(measured)
    table = text_table(*scaling_table(measured), title=f"{measured.job.text}, on {measured.machine.name}")
    reporter.say("bench", f"{table}\nwritten: {bench.target}", **measured.as_dict(), path=str(bench.target))
    return measured
