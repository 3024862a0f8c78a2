"""The formats of boxes: where their pictures and label files lie, and which belong together.

kitti   [training/]image_2/000000.png   [training/]label_2/000000.txt
voc     JPEGImages/2007_000027.jpg      Annotations/2007_000027.xml
yolo    images/.../a.jpg                labels/.../a.txt     no file: a picture without boxes
idl     "images/a.png": (1, 2, 3, 4);   lists in data.train, val and test, or one in data.labels

What belongs to training is what data.train, val and test list (text files with a picture on each line, by its number,
name or path; or folders of pictures). Without them, data.split shares all pictures out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outsize.data.boxes import Boxes, no_boxes
from outsize.data.formats.boxed.fitting import with_boxes
from outsize.data.formats.boxed.idl_text import read_idl
from outsize.data.formats.boxed.kitti_text import read_kitti
from outsize.data.formats.boxed.lines import read_lines
from outsize.data.formats.boxed.voc_xml import read_voc
from outsize.data.formats.boxed.yolo_text import read_yolo
from outsize.data.formats.layout import Layout, share_pictures
from outsize.data.formats.object_labels import in_full
from outsize.data.made import stamp
from outsize.data.scenes import LabelledScene
from outsize.data.split import SPLITS
from outsize.errors import DataError, JobError, OutsizeError, UnsafeFileError, explain, listed
from outsize.job import DataSection
from outsize.raster.reading import SceneInfo, has_picture_name

_ENDINGS = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Shelves:
    """Where a dataset keeps its pictures and labels, below its root."""

    pictures: tuple[str, ...]
    labels: tuple[str, ...]  # beside those
    ending: str
    may_lack: bool = False  # a picture without a label file has no box


_PLACES = {
    "kitti": Shelves(("image_2", "training/image_2"), ("label_2", "training/label_2"), ".txt"),
    "voc": Shelves(("JPEGImages",), ("Annotations",), ".xml"),
    "yolo": Shelves(("images",), ("labels",), ".txt", may_lack=True),
}


def find_boxed(data: DataSection, seed: int) -> Layout:
    """Find the pictures of a dataset of boxes, and say which lack labels."""
    root, place = Path(data.root), _PLACES[data.format]
    found = [
        (root / here, root / there) for here, there in zip(place.pictures, place.labels, strict=True)
        if (root / here).is_dir()
    ]  # fmt: skip
    if not found:
        need, remedy = f"a folder {' or '.join(place.pictures)}", "correct data.root"
        return Layout(faults=(DataError(explain(f"no pictures in {root}", "no such folder", need, remedy)),))
    pictures, labels = found[0]
    paths = _pictures_below(pictures)
    if not paths:
        need, remedy = f"pictures ({', '.join(_ENDINGS)})", "copy them there, or correct data.root"
        return Layout(faults=(DataError(explain(f"no pictures in {pictures}", "none", need, remedy)),))
    files = {path: (labels / path.relative_to(pictures)).with_suffix(place.ending) for path in paths.values()}
    try:
        shared = _shared(data, paths, root) or share_pictures(sorted(files), data, seed)
    except OutsizeError as error:
        return Layout(faults=(error,))
    used = list(dict.fromkeys(path for held in shared.values() for path in held))
    missing = [path for path in used if not files[path].is_file()]
    faults: tuple[OutsizeError, ...] = ()
    notes: tuple[str, ...] = ()
    if missing and (not place.may_lack or len(missing) == len(used)):
        text = f"labels of {missing[0]} are missing"
        what = f"no {files[missing[0]]}, of {len(missing)} of {len(used)} pictures"
        remedy = "add them, leave the pictures out, or correct data.root"
        faults = (DataError(explain(text, what, "a label file for each picture", remedy)),)
    elif missing:
        names = listed([path.name for path in missing])
        notes = (f"{len(missing)} pictures have no label file, and are learnt as empty: {names}",)

    def open_scene(path: Path, cache: Path) -> LabelledScene:
        image, source = in_full(path, data), files[path]
        key = stamp(source) if source.is_file() else "none"
        return with_boxes(image, data, cache, source, key, partial(_READERS[data.format], source, image))

    return Layout(shared, open_scene, faults=faults, notes=notes)


def find_idl(data: DataSection, seed: int) -> Layout:
    """Find the pictures that lists name, and say which are missing."""
    root = Path(data.root)
    if len(data.classes) != 1:
        need, remedy = "one class, for lists do not tell which", "list one class"
        raise JobError(explain("data.classes do not fit data.format idl", len(data.classes), need, remedy))
    named = {split: getattr(data, split) for split in SPLITS}
    lists = named if any(named.values()) else {"": [str(root / data.labels)]}
    shared: dict[str, tuple[Path, ...]] = {}
    boxes: dict[Path, tuple[Boxes, Path]] = {}
    label = data.classes[0].attribute or data.classes[0].name
    for split, files in lists.items():
        held: dict[Path, None] = {}
        for file in map(Path, files):
            for name, own in read_idl(file, label).items():
                path = _below(root, name, file, data.allow_references)
                boxes[path] = own, file
                held[path] = None
        shared[split] = tuple(held)
    missing = [path for path in boxes if not path.is_file()]
    if missing:
        what = f"{len(missing)} of {len(boxes)} not there: {listed(missing)}"
        text, remedy = (
            f"pictures of {boxes[missing[0]][1]} are missing",
            "copy them there, or correct data.root",
        )
        return Layout(faults=(DataError(explain(text, what, f"all {len(boxes)} pictures", remedy)),))
    if "" in shared:
        shared = share_pictures(shared[""], data, seed)

    def open_scene(path: Path, cache: Path) -> LabelledScene:
        own, source = boxes[path]
        image = in_full(path, data)
        key = f"idl {own.sides.tolist()}"
        return with_boxes(image, data, cache, f"{source}, {path.name}", key, lambda: own)

    return Layout(shared, open_scene)


def _read_voc(source: Path, image: SceneInfo) -> Boxes:
    found = read_voc(source)
    size = (image.height, image.width)
    if found.size is not None and found.size != size:
        text = f"{image.path} does not fit its boxes in {source}"
        need, remedy = "{} x {} px, as the file says".format(*found.size), "get the picture in that size"
        raise DataError(explain(text, "{} x {} px".format(*size), need, remedy))
    return found.boxes


def _read_yolo(source: Path, image: SceneInfo) -> Boxes:
    size = (image.height, image.width)
    return read_yolo(source, size) if source.is_file() else no_boxes()


_READERS: Mapping[str, Callable[[Path, SceneInfo], Boxes]] = {
    "kitti": lambda source, _: read_kitti(source),
    "voc": _read_voc,
    "yolo": _read_yolo,
}


def _pictures_below(folder: Path) -> dict[str, Path]:
    """Return all pictures below a folder, by their place in it without its ending."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _ENDINGS and not path.name.startswith(".") and has_picture_name(path):
            found[path.relative_to(folder).with_suffix("").as_posix()] = path
    return found


def _shared(data: DataSection, paths: Mapping[str, Path], root: Path) -> dict[str, tuple[Path, ...]]:
    """Return the pictures that the job lists for each split; none where it lists none."""
    named = {split: getattr(data, split) for split in SPLITS}
    if not any(named.values()):
        return {}
    of_name = {path.stem: path for path in paths.values()} | dict(paths)
    shared = {}
    for split, sources in named.items():
        held: dict[Path, None] = {}
        for source in map(Path, sources):
            if source.is_dir():
                held |= dict.fromkeys(path for path in paths.values() if source in path.parents)
                continue
            for number, line in enumerate(read_lines(source, "a list of pictures"), start=1):
                words = line.split()
                if not words:
                    continue
                name = Path(words[0])  # behind it may stand its label file
                path = of_name.get(words[0]) or of_name.get(name.stem)
                if path is None:
                    need, remedy = f"a picture of {root}", "correct the list"
                    raise DataError(
                        explain(f"{source}, line {number}: no such picture", repr(words[0]), need, remedy)
                    )
                held[path] = None
        shared[split] = tuple(held)
    if not shared["train"]:
        raise JobError(explain("nothing to train on", "no picture in data.train", "pictures", "name some"))
    return shared


def _below(root: Path, name: str, source: Path, allow_outside: bool) -> Path:
    if not allow_outside and (Path(name).is_absolute() or ".." in Path(name).parts):
        need, remedy = "pictures below data.root", "if you trust the file, set data.allow_references"
        raise UnsafeFileError(explain(f"{source} points outside its folder", name, need, remedy))
    return root / name
