"""`outsize pack JOB` and `outsize unpack PACK`: a job with its training so far, here in one file, and there at work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from outsize.accounts import accounted
from outsize.files.locks import holding
from outsize.job import load_job
from outsize.job.naming import naming
from outsize.packing.unpack import Unpacked
from outsize.packing.unpack import unpack as unpack_to
from outsize.planning.slurm import allocate
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.units import format_bytes, format_count


def pack(
    job_path: Path,
    *,
    overrides: Sequence[str],
    ranks: tuple[int, int],
    gpu: str | None,
    minutes: int | None,
    out: Path | None,
    reporter: Reporter,
    **options: bool,
) -> Path:
    """Write a job, its run and what it needs as one archive or folder, and return its path.

    `ranks` are those of (nodes, each node) that the script asks for; options are `data` and `overwrite`.
    """
    from outsize.measure.machine import pick_device
    from outsize.packing.differing import machine_of, summed
    from outsize.packing.pack import gather, head_of, write_pack
    from outsize.planning.asking import ask_for
    from outsize.planning.planned import read_train_plan
    from outsize.planning.situation import situation_here

    job, (nodes, per_node) = load_job(job_path, overrides), ranks
    run, target = RunFolder(Path(job.run)), out or job_path.with_suffix(".tar")
    with accounted(run, "pack", reporter), naming(job_path), ExitStack() as stack:
        if run.path.is_dir():  # or a state could be replaced meanwhile
            stack.enter_context(holding(run.lock, f"run {run.path}", "pack"))
        request, planned = ask_for(job, nodes * per_node, gpu, reporter)
        asked = allocate(request, nodes, per_node, job.train.workers if request.gpus else 0, minutes)
        found = gather(job, job_path.stem, asked)
        here = planned.where
        if gpu is not None:
            here = situation_here(pick_device("auto"), job.train.precision, job.limits.gpu_memory)
        plan = planned.train_plan if found.step is None else read_train_plan(run)
        head = head_of(job_path.stem, machine_of(here), summed(plan), request.as_dict(), asked)
        size = write_pack(
            target,
            found,
            head,
            takes_data=options.get("data", False),
            overwrite=options.get("overwrite", False),
            reporter=reporter,
        )
    data = f"{format_count(len(found.data), 'file')} of data {'along' if options.get('data') else 'listed'}"
    step = "not trained yet" if found.step is None else f"trained to step {found.step:,}"
    text = f"{target}, {format_bytes(size)}: {step}, {data}; there: outsize unpack {target.name}"
    reporter.say("packed", text, path=str(target), bytes=size, step=found.step, files=len(found.data))
    return target


def unpack(path: Path, *, to: Path | None, data_root: Path | None, reporter: Reporter) -> Unpacked:
    """Check a pack, leave its job in a folder, bound to its data, and say how it goes on."""
    found = unpack_to(path, to, data_root, reporter)
    about = found.head["data"]
    if found.missing:
        files = f"{len(found.missing):,} of {format_count(about['files'], 'file')} of data"
        text = f"warning: {files} are not here: copy them below {found.root}, or say where they are: "
        text += f"outsize unpack {found.folder} --data-root FOLDER; data.jsonl names them"
        reporter.say("missing", text, missing=len(found.missing), bytes=about["bytes"])
    step = found.head.get("step")
    begun = "not trained yet" if step is None else f"trained to step {step:,}"
    text = f"{found.folder}: {begun}, data in {found.root}; what differs here: outsize plan {found.folder}/job.toml; "
    text += (
        f"to go on: outsize train {found.folder}/job.toml --resume, or sbatch {found.folder}/train.slurm.sh"
    )
    reporter.say("unpacked", text, path=str(found.folder), root=str(found.root), step=step)
    return found
