"""Scenes to predict: opened, left out where an area of interest misses them, each with the files of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import OutputError, explain
from outsize.files.ownership import Consent
from outsize.infer.inputs import bands_of, open_inputs
from outsize.job import Job
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tasks.subjects import refuse_missed

if TYPE_CHECKING:
    from outsize.raster.polygons import AreaOfInterest
    from outsize.raster.reading import SceneInfo
    from outsize.tasks.task import SceneFiles


def open_to_predict(
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
    infos = open_inputs(given, stacks, job.data, bands_of(run) if stacks else (), run.labels)
    areas = _lay_areas(aoi, infos, reporter)
    infos = [info for info in infos if info.path in areas]
    names = choose_names(folder, [info.path for info in infos])
    products = [
        task.products(folder / name, job.predict, info, inside=areas[info.path], consent=consent)
        for name, info in zip(names, infos, strict=True)
    ]
    _refuse_overwriting(products, infos)
    return list(zip(infos, products, strict=True))


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
