"""The format `cityscapes`: street scenes by split and city, as they are unpacked from the archives of the dataset.

    leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png
    gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png
    gtCoarse/train_extra/...                                             with data.labels = "gtCoarse"

Label ids are turned into classes when they are read: the classes of the job, in the order of the train ids, have
label ids as their values. So nothing is converted, and maps hold the label ids that the benchmark asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outsize.data.formats.folders import pair
from outsize.data.formats.layout import Layout, pictures_in
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, JobError, explain, listed
from outsize.job import DataSection
from outsize.known.tables import table
from outsize.raster.reading import describe

PICTURES = "leftImg8bit"
LABELS = ("gtFine", "gtCoarse")
_ARCHIVES = {  # where the folder may lie, whether archives are unpacked side by side or each into a folder of its name
    PICTURES: ("leftImg8bit_trainvaltest", "leftImg8bit_trainextra"),
    "gtFine": ("gtFine_trainvaltest",),
    "gtCoarse": ("gtCoarse",),
}


@dataclass(frozen=True)
class _Part:
    """Pictures of one folder and the labels they are to have, both by name."""

    split: str
    name: str  # of the folder: train, val, train_extra
    pictures: Mapping[str, Path]
    labels: Mapping[str, Path]
    kind: str


def find_cityscapes(data: DataSection, seed: int) -> Layout:  # noqa: ARG001 (the split is the dataset's own)
    """Find the pictures of train and val with their labels, and say what a half downloaded dataset lacks.

    With coarse labels, train_extra is trained on where its pictures are there; validation is on fine labels.
    """
    root, kind = Path(data.root), data.labels
    if kind not in LABELS:
        need, remedy = f"one of {', '.join(LABELS)}", "correct data.labels"
        raise JobError(explain("unknown labels of Cityscapes", repr(kind), need, remedy))
    wanted = [("train", kind, "train"), ("val", "gtFine", "val")]
    notes = []
    if kind == "gtCoarse":
        if _folder(root, PICTURES, "train_extra") is None:
            notes.append(
                "pictures of train_extra are not there: only the coarse labels of train are learnt from"
            )
        else:
            wanted.insert(1, ("train", kind, "train_extra"))
    faults = _missing_folders(root, wanted)
    if faults:
        return Layout(faults=faults)
    parts = [_part(root, *each) for each in wanted]
    labels = {
        part.pictures[name]: path
        for part in parts
        for name, path in part.labels.items()
        if name in part.pictures
    }
    shared = {
        split: tuple(path for part in parts if part.split == split for path in part.pictures.values())
        for split in ("train", "val", "test")
    }

    def open_scene(path: Path, cache: Path) -> LabelledScene:  # noqa: ARG001 (nothing is made)
        return pair(describe(path), describe(labels[path]))

    return Layout(
        shared,
        open_scene,
        labels.get,
        tuple(fault for part in parts for fault in _missing_files(root, part)),
        (*notes, *(note for part in parts for note in _missing_cities(part))),
    )


def _folder(root: Path, kind: str, name: str) -> Path | None:
    for place in (root / kind, *(root / archive / kind for archive in _ARCHIVES[kind])):
        if (place / name).is_dir():
            return place / name
    return None


def _missing_folders(root: Path, wanted: Sequence[tuple[str, str, str]]) -> tuple[DataError, ...]:
    """List the folders that are not there; an archive that only waits to be unpacked is named."""
    pairs = [(PICTURES, name) for _, _, name in wanted] + [(kind, name) for _, kind, name in wanted]
    missing = [(kind, name) for kind, name in pairs if _folder(root, kind, name) is None]
    if not missing:
        return ()
    packed = [path.name for kind, _ in missing for path in sorted(root.glob(f"{kind}*.zip"))]
    remedy = (
        f"unpack {', '.join(dict.fromkeys(packed))}"
        if packed
        else "download what is missing from https://www.cityscapes-dataset.com, or correct data.root"
    )
    found = listed([f"no {kind}/{name}" for kind, name in missing], 8)
    need = f"{', '.join(dict.fromkeys(f'{kind}/{name}' for kind, name in pairs))} below it"
    return (DataError(explain(f"Cityscapes in {root} is not complete", found, need, remedy)),)


def _part(root: Path, split: str, kind: str, name: str) -> _Part:
    pictures, labels = _folder(root, PICTURES, name), _folder(root, kind, name)
    assert pictures is not None
    assert labels is not None
    return _Part(
        split, name, _by_city(pictures, f"_{PICTURES}.png"), _by_city(labels, f"_{kind}_labelIds.png"), kind
    )


def _by_city(folder: Path, ending: str) -> dict[str, Path]:
    cities = [city for city in sorted(folder.iterdir()) if city.is_dir()]
    return {
        f"{city.name}/{name}": path for city in cities for name, path in pictures_in(city, ending).items()
    }


def _missing_files(root: Path, part: _Part) -> list[DataError]:
    """List labels and pictures that lack the other; a city of which nothing is there is named as a whole."""
    faults = []
    for what, here, there, place in (
        ("labels", part.pictures, part.labels, f"{part.kind}/{part.name}"),
        ("pictures", part.labels, part.pictures, f"{PICTURES}/{part.name}"),
    ):
        missing = [name for name in here if name not in there]
        if missing or not here:
            known = {name.partition("/")[0] for name in there}
            gone = dict.fromkeys(
                name.partition("/")[0] for name in missing if name.partition("/")[0] not in known
            )
            names = [f"all of {city}" for city in gone]
            names += [name for name in missing if name.partition("/")[0] not in gone]
            found = (
                f"none of {len(missing)} in {place}: {listed(names, 8)}" if missing else f"nothing in {place}"
            )
            remedy = "download the archive again and unpack all of it, or remove what has no counterpart"
            faults.append(
                DataError(
                    explain(
                        f"Cityscapes in {root} is not complete: {what} of {part.name} are missing",
                        found,
                        f"{what} of all {len(here)}" if here else "some",
                        remedy,
                    )
                )
            )
    return faults


def _missing_cities(part: _Part) -> list[str]:
    known: dict[str, int] = table("cityscapes")["cities"].get(part.name, {})
    found = [name.partition("/")[0] for name in part.pictures]
    few = [f"{city} ({found.count(city)} of {num})" for city, num in known.items() if found.count(city) < num]
    if not few:
        return []
    total = sum(known.values())
    return [f"{part.name} is a part of Cityscapes, {len(found)} of {total} pictures: {listed(few, 24)}"]
