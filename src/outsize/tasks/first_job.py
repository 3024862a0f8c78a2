"""The first job file of a folder: what was guessed of its images and labels, written with comments for a person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.tasks import info_of, task_for
from outsize.units import format_count

if TYPE_CHECKING:
    from outsize.data.formats import Dataset
    from outsize.data.guess import Guess

CHECK = "CHECK:"  # marks a line to look at
COLOURS = ("#b8b08d", "#d1495b", "#3474c2", "#266e38", "#decb6e", "#7a4fa3", "#e07b39", "#4fb0ae", "#8c8c8c")

_TEXT = """\
# Written by `outsize init` from a look at {folder}: {num}.
# {marked}Every key: docs/job.md.
task = "{task}"{task_note}
seed = 0
run = {run}

{data}
{model}
[limits]
# gpu_memory = "16GiB"
"""

_DATA = """\
[data]
format = "{format}"{format_note}
{root}images = {images}
# Labels, seen from their image: {{stem}} is the image's name without its ending.
labels = {labels}
{meaning}ignore_value = {ignore}        # label value that is neither learnt nor scored
bands = {bands}        # CHECK: names of the bands, in file order
max_bad_share = 0.0        # share of corrupt images that may be set aside

[data.split]
by = "{split}"        # {split_note}{gap}
val = 0.15
test = 0.15

# CHECK: give the classes their names and colours.
{classes}"""

_CLASS_MAPS = "CHECK: or taco-1, -2, -3, -4, -17, -60; or leave it out and list data.classes"

_SPLIT_NOTES = {
    "scene": "each image is in one of train, val and test",
    "folder": "images of one folder stay together; or name test_folders",
    "blocks": "blocks of each image, a halo apart; their side: block_px = 512",
}


def first_job(found: Guess, folder: Path, target: Path, run: str) -> str:
    """Return the text of a job for a folder, to stand in the file `target` and to fill the folder `run`."""
    here, there = target.parent.resolve(), folder.resolve()
    root = there.relative_to(here).as_posix() if there.is_relative_to(here) else there.as_posix()
    can_be_both = found.format == "coco" or bool(found.attribute or found.all_polygons)
    note = "        # or each outline an object of its own: `outsize init --objects`"
    kinds = {"objects": found.objects, "pictures": found.pictures, "frames": found.frames}
    task = task_for(next((kind for kind, is_it in kinds.items() if is_it), "classes"))
    data = _data(found, root) if found.dataset is None else _dataset(found.dataset, root)
    return _TEXT.format(
        marked="Lines to look at are marked CHECK. " if CHECK in data else "",
        task=task,
        task_note=note if can_be_both and not found.objects else "",
        model=info_of(task).first_sections,
        folder=" ".join(str(folder).split()),
        num=format_count(found.num_images, "image"),
        run=_quoted(run),
        data=data,
    )


def _dataset(dataset: Dataset, root: str) -> str:
    """Write the section of a dataset that is known: only what does not follow from its format."""
    notes = {
        "radar": "frames that follow one another: netCDF-4, HDF5 or GeoTIFF",
        "masks": "a folder for each picture, a mask for each object",
        "classes": "a folder of pictures for each class",
    }
    if dataset.class_map is None:
        notes["coco"] = "outlines of one file for all pictures"
    note = notes.get(dataset.format, "as distributed: classes and colours are known")
    lines = ["[data]", f'format = "{dataset.format}"        # {note}']
    lines += [f"root = {_quoted(root)}"] if root != "." else []
    lines += [f"labels = {_quoted(dataset.labels)}"] if dataset.labels is not None else []
    if dataset.class_map is not None:
        lines.append(f"class_map = {_quoted(dataset.class_map)}        # {_CLASS_MAPS}")
    elif dataset.format == "coco" and not dataset.objects:
        lines.append(
            f"outside = {_quoted(dataset.class_names[0])}        # CHECK: or leave it out to ignore the rest"
        )
    lines.append("max_bad_share = 0.0        # share of corrupt images that may be set aside")
    if dataset.step_minutes is not None:
        return "\n".join([*lines, *_frames(dataset.step_minutes)]) + "\n"
    if not dataset.is_split:
        note = _SPLIT_NOTES["scene"]
        lines += ["", "[data.split]", f'by = "scene"        # {note}', "val = 0.15", "test = 0.15"]
    if dataset.format in notes:
        lines += ["", "# CHECK: give the classes their colours."]
        first = 1 if dataset.objects else 0
        lines += [
            _class_table(number, (name, number, None))
            for number, name in enumerate(dataset.class_names, start=first)
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _frames(step_minutes: float) -> list[str]:
    """Write the sections on frames that follow one another."""
    note = "# the last forecasts are held back; or name intervals: train_times, val_times, test_times"
    return [
        *("", "[data.frames]", f"step_minutes = {step_minutes:g}        # CHECK: between two frames"),
        "num_in = 10        # frames that the model sees",
        "num_out = 10        # frames that it forecasts",
        'flow = "dis"        # sees the last frame carried on by optical flow, too; "none": it does not',
        "backwards = true        # also learns from windows played backwards: as much of growth as of decay",
        *("", "[data.split]", note, "val = 0.15", "test = 0.15"),
    ]


def _data(found: Guess, root: str) -> str:
    meaning = []
    if found.attribute is not None:
        meaning.append(f"attribute = {_quoted(found.attribute)}        # CHECK: names the class of a polygon")
    if found.all_polygons is not None:
        meaning.append(f"all_polygons = {_quoted(found.all_polygons)}        # the class of every polygon")
    if found.outside is not None:
        meaning.append(
            f"outside = {_quoted(found.outside)}        # CHECK: or leave it out to ignore the rest"
        )
    mask = "a mask of ids of objects" if found.objects else "a mask"
    notes = {"folders": f"        # pictures, each with {mask}", "scenes": "        # large rasters"}
    gap = "\ngap_px = 64        # CHECK: distance of blocks; best the size of large objects"
    return _DATA.format(
        format=found.format,
        format_note=notes[found.format],
        root="" if root == "." else f"root = {_quoted(root)}\n",
        images=json.dumps(list(found.images), ensure_ascii=False),
        labels=_quoted(found.labels),
        meaning="".join(f"{line}\n" for line in meaning),
        ignore=found.ignore_value,
        bands=json.dumps(list(found.bands), ensure_ascii=False),
        split=found.split_by,
        gap=gap if found.objects and found.split_by == "blocks" else "",
        split_note=_SPLIT_NOTES[found.split_by],
        classes="\n".join(_class_table(number, each) for number, each in enumerate(found.classes)),
    )


def _class_table(number: int, each: tuple[str, int, str | None]) -> str:
    name, value, attribute = each
    lines = ["[[data.classes]]", f"name = {_quoted(name)}", f"value = {value}"]
    if attribute is not None and attribute != name:
        lines.append(f"attribute = {_quoted(attribute)}")
    lines.append(f'colour = "{COLOURS[number % len(COLOURS)]}"')
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a TOML string
