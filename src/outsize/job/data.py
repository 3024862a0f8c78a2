"""The section of a job on data: where images and labels are, how they are shared out, what the classes are."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from outsize.errors import JobError, explain
from outsize.job.fields import Colour, LabelsName, LabelValues, MistakenValue, Section, Strings
from outsize.job.frames import FramesSection


class ClassSpec(Section):
    """One class of the map: its name, its value in label rasters, its colour."""

    name: str
    value: int = Field(ge=0, le=253)
    attribute: str | None = Field(
        None, description="what the attribute of vector labels says; default: the name"
    )
    colour: Colour = (128, 128, 128)


def _checked_classes(classes: tuple[ClassSpec, ...], about: ValidationInfo) -> tuple[ClassSpec, ...]:
    one_will_do = any(about.data.get(kind) for kind in ("objects", "boxes", "numbers"))
    if len(classes) < (1 if one_will_do else 2):
        raise ValueError("at least 2 classes, of which one may be all the rest")
    for key, other in (("name", "value"), ("value", "name")):
        seen: dict[object, ClassSpec] = {}
        for each in classes:
            twin = seen.setdefault(getattr(each, key), each)
            if twin is not each:
                both = f"{getattr(twin, other)!r} and {getattr(each, other)!r}"
                found = f"{key} {getattr(each, key)!r} twice, of the classes with {other} {both}"
                remedy = f"give one of them another {key}"
                raise MistakenValue(f"a {key} of its own for each class", found=found, remedy=remedy)
    return classes


class SplitSection(Section):
    """How images are shared out where data.images is given instead of train, val and test."""

    by: Literal["scene", "folder", "blocks"] = Field(
        "scene", description="what stays together; windows of frames go by their times"
    )
    order: Literal["drawn", "named"] = Field(
        "drawn", description="drawn by the seed, or by name: the last are held back, as in published lists"
    )
    val: float = Field(0.15, ge=0, lt=1, description="share for validation")
    test: float = Field(0.15, ge=0, lt=1, description="share held back")
    test_folders: Strings = Field((), description="by folder: these are held back, whatever the share")
    val_folders: Strings = ()
    block_px: int = Field(512, ge=32, description="by blocks: side of a block")
    gap_px: int | None = Field(
        None, ge=0, description="by blocks: distance between splits; default: the model's halo"
    )
    train_times: Strings = Field(
        (),
        description="of frames: intervals FROM/TO (ISO 8601, UTC), ends included, that hold all frames learnt from",
    )
    val_times: Strings = Field((), description="of frames: intervals in which forecasts start")
    test_times: Strings = ()
    gap_minutes: float = Field(
        0, ge=0, description="of frames: time that lies between a frame learnt from and one to be forecast"
    )


class DataSection(Section):
    """Where images and labels are and what they mean."""

    objects: bool = Field(False, description="labels are single objects; the task instances sets it")
    boxes: bool = Field(False, description="labels are boxes; the task detect sets it")
    pictures: bool = Field(
        False, description="labels are a class for each picture; the task classify sets it"
    )
    numbers: bool = Field(
        False, description="labels are grids of numbers, those of the next frames; the task forecast sets it"
    )
    format: Literal[
        "scenes",
        "folders",
        "cityscapes",
        "camvid",
        "coco",
        "masks",
        "kitti",
        "idl",
        "voc",
        "yolo",
        "classes",
        "idx",
        "radar",
    ] = Field(
        "scenes", description="large rasters, many pictures with masks, or a dataset as it is distributed"
    )
    root: str = Field(
        "", description="folder that patterns begin at, or that holds the dataset, relative to the job file"
    )
    images: Strings = Field(
        (), description="all images, shared out by data.split; or name train, val and test"
    )
    train: Strings = Field((), description="image files or patterns, relative to the root")
    val: Strings = ()
    test: Strings = ()
    split: SplitSection = SplitSection()
    frames: FramesSection = FramesSection()
    labels: LabelsName = Field(
        "{stem}_labels.tif",
        description="raster or vector file, relative to its image; or one vector file for all; "
        "cityscapes: gtFine or gtCoarse; coco: the file, relative to the root",
    )
    class_map: str | None = Field(
        None,
        description="coco: published classes that categories are joined to: taco-1, -2, -3, -4, -10, -17, -60",
    )
    joined: dict[str, str] = Field({}, description='boxes: labels that are learnt as a class: Van = "Car"')
    neutral: Strings = Field((), description="boxes: labels that are neither learnt nor scored")
    left_out: Strings = Field((), description="boxes: labels that are learnt as background")
    layer: str | None = Field(None, description="layer of vector labels; default: the only one")
    attribute: str | None = Field(None, description="attribute of vector labels that names the class")
    all_polygons: str | None = Field(
        None, description="the one class of all polygons, instead of an attribute"
    )
    outside: str | None = Field(None, description="class of pixels outside all polygons; default: ignored")
    stack: dict[str, str] = Field(
        {}, description="scenes of one file per band: band -> file, relative to the image"
    )
    shrink: int = Field(
        1, ge=1, le=16, description="pixels per side that are read as one: 2 halves the picture"
    )
    ignore_value: LabelValues = Field((255,), description="label values that are neither learnt nor scored")
    bands: tuple[str, ...] = Field(
        (), description="bands in the order the model sees; named ones are found by name"
    )
    classes: Annotated[tuple[ClassSpec, ...], AfterValidator(_checked_classes)] = Field(min_length=1)
    max_bad_share: float = Field(0.0, ge=0, lt=1, description="share of corrupt pictures that are set aside")
    allow_references: bool = Field(
        False, description="trust the files: any GDAL format, VRTs that point elsewhere, network addresses"
    )

    def class_value(self, key: str) -> int:
        """Return the value of the class that the text of a key names."""
        name, values = getattr(self, key), {each.name: each.value for each in self.classes}
        if name not in values:
            near = difflib.get_close_matches(name, values, n=len(values), cutoff=0.0)
            need, remedy = f"one of {', '.join(near)}", f"did you mean {near[0]!r}?"
            raise JobError(explain(f"data.{key} names no class", repr(name), need, remedy))
        return values[name]

    @property
    def kind(self) -> str:
        """What labels tell."""
        if self.pictures:
            return "a class for each picture"
        if self.numbers:
            return "frames"
        return "objects" if self.objects else "boxes" if self.boxes else "classes of pixels"

    @property
    def is_dataset(self) -> bool:
        """Whether the format knows by itself where below the root the images are."""
        return self.format not in ("scenes", "folders")
