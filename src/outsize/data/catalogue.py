"""Opens all data of a job: finds the images, pairs them with labels, shares them out, refuses what leaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from outsize.data.bands import in_order, misnamed, own_bands
from outsize.data.feeding import prefetch, prefetch_in_processes
from outsize.data.formats import find_layout
from outsize.data.scenes import LabelledScene, open_image
from outsize.data.split import BadFile, Splits, check_split, share_blocks
from outsize.errors import DataError, JobError, OutsizeError, UnsafeFileError, explain, listed
from outsize.job import DataSection
from outsize.raster.polygons import is_vector
from outsize.raster.reading import describe, has_picture_name
from outsize.tiles.window import Window

_NUM_THREADS = 2
_AT_ONCE = 8  # images that are handed to a thread or process at once
_MANY = 100  # small pictures for which it is worth while to begin processes

Visited = TypeVar("Visited")
OpenScene = Callable[[Path], LabelledScene]


@dataclass(frozen=True)
class Survey:
    """What was found where the job says: images that opened, corrupt ones, and what cannot be passed over."""

    scenes: dict[Path, LabelledScene]
    corrupt: tuple[BadFile, ...]
    faults: tuple[OutsizeError, ...]  # in the order of the images
    shared: Mapping[str, tuple[Path, ...]]  # images of each split, also those that did not open
    bands: tuple[str, ...] = ()  # in the order that all scenes are read in
    notes: tuple[str, ...] = ()  # what else there is to say of what was found
    areas: Mapping[str, Mapping[Path, tuple[Window, ...]]] = field(
        default_factory=dict
    )  # of images in several splits

    @property
    def num_images(self) -> int:
        """Images that were looked for."""
        return len({path for paths in self.shared.values() for path in paths})


def open_data(data: DataSection, *, seed: int, halo_px: int, cache: Path) -> Splits:
    """Open every image with its labels and share them out; corrupt ones are set aside up to the job's share.

    `halo_px` is the distance that blocks of different splits keep; `cache` the folder for labels that are made.
    """
    return make_splits(find_data(data, seed=seed, cache=cache), data, seed=seed, halo_px=halo_px)


def find_data(data: DataSection, *, seed: int, cache: Path) -> Survey:
    """Open every image with its labels; refuse faults, and more corrupt images than the job lets be set aside."""
    survey, _ = look_around(data, seed=seed, cache=cache)
    if survey.faults:
        raise survey.faults[0]
    refuse_too_many(survey.corrupt, survey.num_images, data.max_bad_share)
    return survey


def look_around(
    data: DataSection,
    *,
    seed: int,
    cache: Path,
    num_threads: int = _NUM_THREADS,
    look: Callable[[Path, Path | None, str, OpenScene], tuple[LabelledScene, Visited | None]] | None = None,
) -> tuple[Survey, dict[Path, Visited]]:
    """Open every image with its labels; what is wrong with one of them is collected, not raised.

    `look` gets each image, the file of its labels, its split and the way to open it, in any thread or process, and may
    do more than open it: that overlaps with what is done to others, and what it returns comes back by image.
    """
    layout = find_layout(data, seed)
    if layout.faults:
        return Survey({}, (), layout.faults, layout.shared), {}
    look = None if layout.areas else look  # what is of several splits is counted for each of them, later
    places = {path: split for split, held in layout.shared.items() for path in held}
    paths = list(places)
    bands = data.bands or layout.bands or _first_bands(paths, data)

    def open_scene(path: Path) -> LabelledScene:
        assert layout.open is not None
        scene = layout.open(path, cache).shrunk(data.shrink)
        return replace(scene, image=in_order(bands, scene.image))

    def attempt(path: Path) -> tuple[LabelledScene | OutsizeError, Visited | None]:
        try:
            if look is None:
                return open_scene(path), None
            return look(path, layout.labels(path), places[path], open_scene)
        except OutsizeError as error:
            return error, None

    def attempt_some(first: int) -> list[tuple[LabelledScene | OutsizeError, Visited | None]]:
        return [attempt(path) for path in paths[first : first + _AT_ONCE]]

    starts = range(0, len(paths), _AT_ONCE)
    # Pictures only: a copy of this process cannot go on with threads that GDAL may have begun.
    if look is not None and len(paths) >= _MANY and all(map(has_picture_name, paths)):
        parts = prefetch_in_processes(
            attempt_some, starts, num_processes=num_threads, num_ahead=4 * num_threads
        )
    else:
        # Burning polygons changes warning filters of the whole process, which is not for threads.
        num_threads = 1 if data.format == "scenes" and is_vector(data.labels) else num_threads
        parts = prefetch(attempt_some, starts, num_threads=num_threads, num_ahead=4 * num_threads)
    scenes, corrupt, faults, visits = {}, [], [], {}
    for path, (found, visited) in zip(paths, chain.from_iterable(parts), strict=True):
        if isinstance(found, LabelledScene):
            scenes[path] = found
            if visited is not None:
                visits[path] = visited
        elif isinstance(found, DataError) and _is_corrupt(path, layout.labels(path), data):
            corrupt.append(BadFile(path, str(found)))
        else:
            faults.append(found)
    faults += misnamed(data.bands, [scene.image for scene in scenes.values()])
    rest = (layout.shared, tuple(bands), layout.notes, layout.areas)
    return Survey(scenes, tuple(corrupt), tuple(faults), *rest), visits


def make_splits(survey: Survey, data: DataSection, *, seed: int, halo_px: int) -> Splits:
    """Share out the images that opened, and refuse a split that leaks or leaves nothing."""
    gap_px = halo_px if data.split.gap_px is None else data.split.gap_px
    if data.images and data.split.by == "blocks":
        _refuse_no_gap(data)
        shared = share_blocks(list(survey.scenes.values()), data.split, seed=seed, gap_px=gap_px)
    else:
        shared = {
            split: tuple(
                replace(survey.scenes[path], areas=survey.areas.get(split, {}).get(path, ()))
                for path in paths
                if path in survey.scenes
            )
            for split, paths in survey.shared.items()
        }
    splits = Splits(**shared, set_aside=survey.corrupt, notes=survey.notes)
    for split, scenes in splits.items():
        if survey.shared[split] and not scenes and data.split.by != "blocks":
            raise DataError(nothing_left(split, survey.shared[split], data))
    check_split(splits, gap_px)
    return splits


def nothing_left(split: str, bad: Sequence[Path], data: DataSection) -> str:
    """Say that all images of a split cannot be read, which they are, and what to do."""
    other = "set another data.split or seed" if data.images else f"name others in data.{split}"
    if data.is_dataset:
        other = "download them again"
    found = (
        f"all {len(bad)} unreadable: {listed(bad)}"
        if len(bad) > 1
        else f"its only image unreadable: {bad[0]}"
    )
    remedy = f"restore the files from their source, or {other}"
    return explain(f"nothing is left for {split}", found, "at least one image that can be read", remedy)


def _refuse_no_gap(data: DataSection) -> None:
    """Refuse to guess how far apart blocks must be for a model that finds objects: it has no exact halo."""
    if (data.objects or data.boxes) and data.split.gap_px is None:
        need, remedy = (
            "the distance of blocks of different splits",
            "set it, e.g. to the size of large objects",
        )
        raise JobError(explain("data.split.gap_px is missing", "blocks of objects", need, remedy))


def refuse_too_many(bad: Sequence[BadFile], num_images: int, max_share: float) -> None:
    """Refuse more corrupt images than the job lets be set aside; the message is that of the first."""
    if not bad or len(bad) <= max_share * num_images:
        return
    if max_share == 0 and len(bad) == 1:
        raise DataError(bad[0].reason)
    named = ", ".join(each.path.name for each in bad[:5]) + (" and others" if len(bad) > 5 else "")
    raise DataError(
        explain(
            f"{len(bad)} of {num_images} images cannot be read: {bad[0].reason.partition(': found ')[0]}",
            named,
            f"at most {max_share:.1%} of them",
            "restore them from their source, remove them, or set data.max_bad_share",
        )
    )


def _is_corrupt(path: Path, labels: Path | None, data: DataSection) -> bool:
    """Say whether an image that did not open is broken by itself, as is its mask, and not just does not fit."""
    try:
        open_image(path, data)
        if labels is not None:
            describe(labels, allow_references=data.allow_references)
    except UnsafeFileError:
        return False
    except DataError:
        return path.exists()
    return False


def _first_bands(paths: Sequence[Path], data: DataSection) -> tuple[str, ...]:
    """Return the bands of the first image that opens: the order of all where the job names none."""
    for path in paths:
        try:
            return own_bands(open_image(path, data))
        except OutsizeError:  # reported where the image is opened with its labels
            continue
    return ()
