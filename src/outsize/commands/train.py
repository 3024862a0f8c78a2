"""`outsize train JOB`: statistics, plan, training loop, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from outsize.accounts import accounted
from outsize.files.beside import clear_left
from outsize.files.ownership import Consent
from outsize.job import load_job
from outsize.planning.situation import AS_USUAL, SPREADS, Sharing
from outsize.progress import Reporter
from outsize.ranks import ALONE, World, joined, own_device, spread
from outsize.runs import RunFolder, working_in
from outsize.session.among import alike, refuse_apart
from outsize.session.resuming import has_begun, launched_s, refuse_losing_job, with_resume
from outsize.session.training import train_job


def train(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    mode: str,
    reporter: Reporter,
    take_over: bool = False,
    sharing: Sharing = AS_USUAL,
    world: World = ALONE,
) -> RunFolder:
    """Train as a job says, in step with all ranks of a world; `mode` is "new", "resume" or "overwrite".

    `take_over`: also where a process on another host, which is over, left the run locked.
    """
    reporter = reporter if world.is_owner else Reporter("quiet")
    world.at("reading the job")
    job = world.owners(lambda: load_job(job_path, overrides))
    run = RunFolder(Path(job.run))
    with ExitStack() as stack:
        if world.is_owner:
            refuse_losing_job(run, job_path)
            consent = Consent(overwrite=mode == "overwrite", take_over=take_over)
            tell = partial(reporter.say, "lock")
            stack.enter_context(working_in(run, "train", consent, tell=tell))
            goes_on = mode == "resume" and run.state.exists()
            stack.enter_context(accounted(run, "train", reporter, goes_on=goes_on))
            clear_left(run.best.parent, is_alone=True)
        refuse_apart(world, run.path)
        asked = overrides, own_device(world, device_name), mode
        train_job(job, run, job_path, asked, reporter, world, sharing)
    return run


def train_over_ranks(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    mode: str,
    reporter: Reporter,
    num_ranks: int | None,
    **options: Any,
) -> None:
    """Train on so many ranks of this machine, or as one of those that torchrun or srun has started."""
    began_s = time.time()

    def again(words: Sequence[str]) -> Sequence[str]:
        """Go on from what was saved; before this training has begun, its folder may hold another one."""
        run = RunFolder(Path(load_job(job_path, overrides).run))
        return with_resume(words) if has_begun(run, began_s) else words

    def say(text: str) -> None:
        reporter.say("ranks", text)

    if spread(num_ranks, device_name, say=say, again=again):
        return
    with joined(alike(job_path, overrides)) as world:
        if world.attempt:  # of torchrun, which repeats the same words
            run = RunFolder(Path(load_job(job_path, overrides).run))
            mode = "resume" if has_begun(run, launched_s()) else mode
        local_norm, way = options.pop("local_norm", False), options.pop("spread", SPREADS[0])
        sharing = Sharing(local_norm, way, options.pop("stages", None), options.pop("shard", False))
        train(
            job_path,
            overrides=overrides,
            device_name=device_name,
            mode=mode,
            reporter=reporter,
            sharing=sharing,
            world=world,
            **options,
        )
