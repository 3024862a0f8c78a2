"""`outsize predict RUN IMAGES...`: the answers of a run's model to whole scenes, as files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.accounts import accounted
from outsize.errors import JobError, explain
from outsize.files.ownership import NONE_GIVEN, Consent
from outsize.job import load_job
from outsize.job.naming import naming
from outsize.progress import Reporter
from outsize.runs import leaving_no_empty_folder, open_run
from outsize.tasks.to_predict import open_to_predict

if TYPE_CHECKING:
    from outsize.ranks import World
    from outsize.raster.reading import SceneInfo
    from outsize.tasks.task import SceneFiles


def predict(  # noqa: PLR0913 (each is what a user may say)
    run_path: Path,
    images: Sequence[Path],
    *,
    out: Path | None,
    overrides: Sequence[str],
    device_name: str,
    reporter: Reporter,
    aoi: Path | None = None,
    stacks: Sequence[str] = (),
    consent: Consent = NONE_GIVEN,
    world: World | None = None,
) -> list[dict[str, Any]]:
    """Predict scenes (by default those held back) with the best weights of a run, inside `aoi` only.

    `stacks` are scenes of one file per band, as texts: red.tif,green.tif,nir.tif. Returns what predict.json lists.
    """
    run = open_run(run_path)
    job = load_job(run.job, overrides)
    folder = out or run.predictions
    asked = images, stacks, aoi

    def opened() -> list[tuple[SceneInfo, SceneFiles]]:
        return open_to_predict(run, job, folder, asked, consent, reporter)

    scenes = opened() if world is None else world.owner_first(opened)
    from outsize.infer.across import over_ranks
    from outsize.infer.prepare import make_prepare
    from outsize.infer.ready import load_ready
    from outsize.measure.machine import pick_device
    from outsize.ranks import ALONE
    from outsize.tasks import task_of

    task, infos, world = task_of(job.task), [info for info, _ in scenes], world or ALONE
    with accounted(run, "predict", reporter) if world.is_owner else nullcontext():
        pick_device(device_name)
        world.at("planning")
        with naming(run.job), reporter.doing("plan"):
            ready = load_ready(
                run.best,
                job.limits,
                infos,
                task.cutting,
                device_name=device_name,
                precision=job.train.precision,
                world=world,
            )
        for info in infos:  # refuse before the first scene is begun, not after hours
            make_prepare(ready.card.bands, info, ready.card.statistics)
        with leaving_no_empty_folder(folder) if world.is_owner else nullcontext():
            return over_ranks(
                world,
                ready,
                scenes,
                lambda ready, scenes: task.predict(run.path, ready, scenes, job.predict, reporter),
                reporter,
                spreads=task.spreads,
                one_table=any(files.grows for _, files in scenes),
            )


def images_of(run_path: Path, split: str, given: Sequence[str] = ()) -> list[Path]:
    """Return the images of one split of a run; refuse others that are `given` besides."""
    from outsize.data.recall import recall_images

    if given:
        need, remedy = "either images or a split", "leave one of them out"
        raise JobError(explain(f"images besides --split {split}", given[0], need, remedy))
    return recall_images(open_run(run_path).split, split)
