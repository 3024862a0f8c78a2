"""`outsize predict RUN IMAGES...`: the answers of a run's model to whole scenes, as files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.accounts import accounted
from outsize.errors import JobError, OutputError, explain
from outsize.files.ownership import NONE_GIVEN, Consent
from outsize.infer.inputs import bands_of, open_inputs
from outsize.job import Job, load_job
from outsize.job.naming import naming
from outsize.progress import Reporter
from outsize.runs import RunFolder, leaving_no_empty_folder, open_run
from outsize.tasks.subjects import refuse_missed

if TYPE_CHECKING:
    from outsize.ranks import World
    from outsize.raster.polygons import AreaOfInterest
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
        return _open_scenes(run, job, folder, asked, consent, reporter)

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


def _open_scenes(
    run: RunFolder,
    job: Job,
    folder: Path,
    asked: tuple[Sequence[Path], Sequence[str], Path | None],
    consent: Consent,
    reporter: Reporter,
) -> list[tuple[SceneInfo, SceneFiles]]:
    """Open the images, stacks and area that were asked for, and say where each scene's files go."""
    from outsize.data.recall import recall_images
    from outsize.infer.ledger import choose_names
    from outsize.tasks import task_of

    task, (images, stacks, aoi) = task_of(job.task), asked
    given = list(images) if images or stacks else recall_images(run.split, "test")
    infos = open_inputs(given, stacks, job.data, bands_of(run) if stacks else ())
    areas = _lay_areas(aoi, infos, reporter)
    infos = [info for info in infos if info.path in areas]
    names = choose_names(folder, [info.path for info in infos])
    products = [
        task.products(folder / name, job.predict, info, inside=areas[info.path], consent=consent)
        for name, info in zip(names, infos, strict=True)
    ]
    _refuse_overwriting(products, infos)
    return list(zip(infos, products, strict=True))


def images_of(run_path: Path, split: str, given: Sequence[str] = ()) -> list[Path]:
    """Return the images of one split of a run; refuse others that are `given` besides."""
    from outsize.data.recall import recall_images

    if given:
        need, remedy = "either images or a split", "leave one of them out"
        raise JobError(explain(f"images besides --split {split}", given[0], need, remedy))
    return recall_images(open_run(run_path).split, split)


def _lay_areas(
    aoi: Path | None, infos: Sequence[SceneInfo], reporter: Reporter
) -> dict[Path, AreaOfInterest | None]:
    """Return the part to predict of each scene, None being all of it; scenes outside the area are left out."""
    from outsize.raster.polygons import open_aoi

    if aoi is None:
        return {info.path: None for info in infos}
    areas: dict[Path, AreaOfInterest | None] = {}
    for info in infos:
        inside = open_aoi(aoi, info)
        if inside is not None:
            areas[info.path] = inside
        else:
            reporter.say("skipped", f"{info.path.name} is outside {aoi}: left out", scene=str(info.path))
    refuse_missed(aoi, len(areas))
    return areas


def _refuse_overwriting(products: Sequence[SceneFiles], infos: Sequence[SceneInfo]) -> None:
    """Refuse a map that would take the place of a scene, of another scene's map, or of what is not ours."""
    from outsize.infer.ledger import read_ledger
    from outsize.infer.outputs import refuse_to_take

    taken = {info.path.resolve(): info.path for info in infos}
    alone = [(info, each) for info, each in zip(infos, products, strict=True) if not each.grows]
    for info, each in alone:
        for path in each.paths:
            if path.resolve() in taken:
                need, remedy = "names of their own for all maps", "choose another --out, or rename the scene"
                raise OutputError(
                    explain(
                        f"{path}, a result of {info.path}, would replace another file",
                        f"the one of {taken[path.resolve()]}",
                        need,
                        remedy,
                    )
                )
        taken |= {path.resolve(): info.path for path in each.paths}
    known = read_ledger(products[0].paths[0].parent) if products else {}
    for info, each in alone:
        refuse_to_take(each.paths, info.path, each.consent, known)
    for each in dict.fromkeys(each for each in products if each.grows):
        refuse_to_take(each.paths, None, each.consent, known)
