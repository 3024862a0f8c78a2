"""The job file: TOML in, checked values out. Only commands see the whole of it."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from outsize.errors import JobError, explain
from outsize.job_predict import PredictSection
from outsize.known.tables import filled_in, for_task
from outsize.units import parse_bytes, parse_size, sides_of


def parse_colour(value: object) -> tuple[int, int, int]:
    """Read "#rrggbb" or three numbers."""
    if isinstance(value, str):
        try:
            red, green, blue = bytes.fromhex(value.removeprefix("#"))
        except ValueError as error:
            raise ValueError('six hex digits or three numbers, e.g. "#1f78b4"') from error
        return red, green, blue
    numbers = tuple(value) if isinstance(value, Sequence) else ()
    if len(numbers) != 3 or any(type(number) is not int or not 0 <= number <= 255 for number in numbers):
        raise ValueError('three numbers from 0 to 255, or e.g. "#1f78b4"')
    return numbers


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str | int) else value


def _as_bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError('a number of bytes, or e.g. "16GiB"')
    return parse_bytes(value)


def _checked_name(value: str) -> str:
    try:
        value.format(stem="stem", name="stem.tif")
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError("a file name in which {stem} or {name} stands for the image's") from error
    if value == "{name}":
        raise ValueError("another file than the image itself, e.g. {stem}_labels.tif")
    return value


def _checked_loss(value: str) -> str:
    names = value.split("+")
    unknown = [name for name in names if name not in LOSS_NAMES]
    if unknown or len(set(names)) != len(names) or len(names) > 2:
        raise ValueError(f"one of {', '.join(LOSS_NAMES)}, or two of them joined by +")
    return value


LOSS_NAMES = ("cross_entropy", "dice", "focal", "gscnn")
Bytes = Annotated[int, BeforeValidator(_as_bytes), Field(gt=0)]
WindowSize = Annotated[int | tuple[int, int], BeforeValidator(parse_size)]
LabelsName = Annotated[str, AfterValidator(_checked_name)]
LossName = Annotated[str, AfterValidator(_checked_loss)]
Colour = Annotated[tuple[int, int, int], BeforeValidator(parse_colour)]
Strings = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
LabelValue = Annotated[int, Field(ge=0, le=255)]
LabelValues = Annotated[tuple[LabelValue, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


class _Section(BaseModel):
    """What all sections share: fixed once read, no key goes unnoticed, and every number has an end."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ClassSpec(_Section):
    """One class of the map: its name, its value in label rasters, its colour."""

    name: str
    value: int = Field(ge=0, le=253)
    attribute: str | None = Field(
        None, description="what the attribute of vector labels says; default: the name"
    )
    colour: Colour = (128, 128, 128)


def _checked_classes(classes: tuple[ClassSpec, ...], about: pydantic.ValidationInfo) -> tuple[ClassSpec, ...]:
    if len(classes) < (1 if about.data.get("objects") else 2):
        raise ValueError("at least 2 classes, of which one may be all the rest")
    for key in ("name", "value"):
        found = [getattr(each, key) for each in classes]
        twice = sorted({each for each in found if found.count(each) > 1})
        if twice:
            raise ValueError(f"one class for each {key}, but {twice[0]!r} is there twice")
    return classes


class SplitSection(_Section):
    """How images are shared out where data.images is given instead of train, val and test."""

    by: Literal["scene", "folder", "blocks"] = Field("scene", description="what stays together")
    val: float = Field(0.15, ge=0, lt=1, description="share for validation")
    test: float = Field(0.15, ge=0, lt=1, description="share held back")
    test_folders: Strings = Field((), description="by folder: these are held back, whatever the share")
    val_folders: Strings = ()
    block_px: int = Field(512, ge=32, description="by blocks: side of a block")
    gap_px: int | None = Field(
        None, ge=0, description="by blocks: distance of splits; default: the model's halo"
    )


class DataSection(_Section):
    """Where images and labels are and what they mean."""

    objects: bool = Field(False, description="labels are objects, one by one: task instances sets it")
    format: Literal["scenes", "folders", "cityscapes", "camvid", "coco", "masks"] = Field(
        "scenes", description="large rasters, many pictures with masks, or a dataset as it is distributed"
    )
    root: str = Field(
        "", description="folder that patterns begin at, or that holds the dataset, seen from the job file"
    )
    images: Strings = Field(
        (), description="all images, shared out by data.split; or name train, val and test"
    )
    train: Strings = Field((), description="image files or patterns, seen from the root")
    val: Strings = ()
    test: Strings = ()
    split: SplitSection = SplitSection()
    labels: LabelsName = Field(
        "{stem}_labels.tif",
        description="raster or vector file, seen from its image; or one vector file for all; "
        "cityscapes: gtFine or gtCoarse; coco: the file, seen from the root",
    )
    class_map: str | None = Field(
        None,
        description="coco: published classes that categories are joined to: taco-1, -2, -3, -4, -10, -17, -60",
    )
    layer: str | None = Field(None, description="layer of vector labels; default: the only one")
    attribute: str | None = Field(None, description="attribute of vector labels that names the class")
    all_polygons: str | None = Field(
        None, description="the one class of all polygons, instead of an attribute"
    )
    outside: str | None = Field(None, description="class of pixels outside all polygons; default: ignored")
    stack: dict[str, str] = Field(
        {}, description="scenes of one file per band: band -> file, seen from the image"
    )
    shrink: int = Field(
        1, ge=1, le=16, description="pixels of a picture, a side, that are read as one: 2 halves it"
    )
    ignore_value: LabelValues = Field((255,), description="label values that are neither learnt nor scored")
    bands: tuple[str, ...] = Field(
        (), description="bands in the order the model sees; named ones are found by name"
    )
    classes: Annotated[tuple[ClassSpec, ...], AfterValidator(_checked_classes)] = Field(min_length=1)
    max_bad_share: float = Field(0.0, ge=0, lt=1, description="share of corrupt pictures that are set aside")
    allow_references: bool = Field(False, description="read VRTs that point outside their folder")

    @property
    def is_dataset(self) -> bool:
        """Whether the format knows by itself where below the root the images are."""
        return self.format not in ("scenes", "folders")


class ModelSection(BaseModel):
    """A model by name; every other key is an option of that model and checked by its builder."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    name: str = "unet"

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class Phase(_Section):
    """One stretch of training; what is left out comes from the train section."""

    name: str = "main"
    epochs: int | None = Field(None, ge=1)
    lr: float | None = Field(None, gt=0)
    log_offset: float | None = Field(None, gt=1, description="of phases with an output of their own")
    trainable: Strings = Field((), description="prefixes of parameter names; empty trains everything")
    output: str | None = Field(
        None,
        description="what the model answers with, where it has several outputs; labels are reduced to its size",
    )


class TrainSection(_Section):
    """How to train."""

    epochs: int = Field(20, ge=1)
    tile_px: WindowSize = Field(256, description="side of a training window, or [height, width]")
    batch: int = Field(8, ge=1)
    samples_per_epoch: int | None = Field(None, ge=1, description="default: cover the scenes once")
    optimizer: Literal["sgd", "adamw"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    schedule: Literal["constant", "polynomial", "step", "cosine"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    power: float = Field(0.9, gt=0, description="of the polynomial schedule")
    step_epochs: int = Field(10, ge=1, description="of the step schedule: lr times step_factor every so many")
    step_factor: float = Field(0.1, gt=0, le=1)
    loss: LossName = Field(
        "cross_entropy", description="cross_entropy, dice, focal, or two joined by +; gscnn"
    )
    class_weights: Literal["none", "median", "log"] = Field(
        "none", description="median frequency, or 1/ln(c+p)"
    )
    log_offset: float = Field(1.10, gt=1, description="c of 1/ln(c+p): the rarest class weighs 1/ln(c)")
    augment: tuple[Literal["flip", "turn", "scale", "noise", "jitter", "blur"], ...] = ("flip", "turn")
    rare_share: float = Field(0.0, ge=0, le=1, description="share of windows drawn where a rare class is")
    empty_share: float = Field(1.0, ge=0, le=1, description="largest share of windows with one class only")
    init: str | None = Field(
        None, description="run whose weights to start from; what does not fit is left out"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 on a GPU")
    compile: bool = Field(
        False, description="let the planner compile blocks where that is faster; compiling takes minutes"
    )
    fuse: bool = Field(
        True, description="on a GPU, batch norm and ReLU as one operation: faster, last digits may differ"
    )
    early_stop_epochs: int | None = Field(None, ge=1, description="stop after so many without a better score")
    max_minutes: float | None = Field(None, gt=0, description="end by then; poly and cosine follow the clock")
    checkpoint_steps: int | None = Field(None, ge=1, description="also save every so many steps")
    workers: int = Field(
        2, ge=1, description="threads, or for a GPU processes, that read and prepare windows"
    )
    phases: tuple[Phase, ...] = ()

    @property
    def window_px(self) -> tuple[int, int]:
        """Height and width of a training window."""
        return sides_of(self.tile_px)

    def all_phases(self) -> tuple[Phase, ...]:
        """Return the phases with every blank filled in; plain training has one."""
        blanks = {"epochs": self.epochs, "lr": self.lr, "log_offset": self.log_offset}
        phases = self.phases or (Phase(),)
        return tuple(
            phase.model_copy(update={k: v for k, v in blanks.items() if getattr(phase, k) is None})
            for phase in phases
        )


class LimitsSection(_Section):
    """What a plan must stay within."""

    gpu_memory: Bytes | None = Field(None, description="default: what the card has free")
    host_memory: Bytes | None = Field(
        None,
        description="of a CPU's step, or of what a GPU's moves to the host; default: most of what is free",
    )
    tile_px: int | None = Field(None, ge=8, description="side of a core at prediction; default: planned")
    halo_px: int | None = Field(None, ge=0, description="default: derived from the model")
    allow_approximate: bool = False


class PublishedSection(_Section):
    """A published result of this job; `evaluate` prints it beside the run's own."""

    source: str = Field("", description="where it was published")
    scores: dict[str, float] = Field(
        {}, description="scores of all, by the names in scores.json: mean_iou = 0.721"
    )
    classes: dict[str, dict[str, float]] = Field({}, description="scores of classes: sky = {iou = 0.908}")


class Job(_Section):
    """A whole job."""

    task: Literal["segment", "instances"] = "segment"
    seed: int = Field(0, ge=0, lt=2**31)
    run: str = Field("", description="run folder; default: runs/NAME OF THE JOB FILE")
    data: Annotated[DataSection, BeforeValidator(filled_in)]  # what a dataset decides need not be said
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    predict: PredictSection = PredictSection()
    limits: LimitsSection = LimitsSection()
    published: PublishedSection = PublishedSection()


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Read and check a job file; `overrides` are texts such as "train.lr=0.01"."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "not UTF-8 text"
        raise JobError(
            explain(f"cannot read job {path}", what, "a readable TOML file", "check the path")
        ) from error
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(
            explain(f"job {path} is no TOML", str(error), "valid TOML", "mend that line")
        ) from error
    for override in overrides:
        _apply_override(tree, override)
    job = check_job(tree, str(path))
    # the paths in a job that a run keeps of itself are absolute already, and stay as they are
    folder = path.parent.resolve() / job.data.root
    parts = ("images", "train", "val", "test")
    update: dict[str, Any] = {part: _anchored(getattr(job.data, part), folder) for part in parts}
    if job.data.is_dataset:
        update["root"] = str(folder)
    data = job.data.model_copy(update=update)
    run = job.run or f"runs/{path.stem}"
    return job.model_copy(update={"data": data, "run": str(Path(run))})


def check_job(tree: dict[str, Any], name: str) -> Job:
    """Check a parsed job; the first mistake becomes a one-line error."""
    try:
        return Job.model_validate(for_task(tree))
    except ValidationError as error:
        raise JobError(_one_line(error.errors()[0], name)) from None
    except JobError as error:  # of a size that is not understood
        raise JobError(f"{name}: {error}") from None


def check_limits(tree: dict[str, Any], name: str) -> LimitsSection:
    """Check a section `limits` that comes without a job."""
    try:
        return LimitsSection.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        raise JobError(_one_line({**first, "loc": ("limits", *first["loc"])}, name)) from None


def dump_job(job: Job) -> str:
    """Write a job as TOML, defaults included."""
    import tomli_w

    return tomli_w.dumps(job.model_dump(mode="json", exclude_none=True))


def _anchored(patterns: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    return tuple(str(folder / pattern) for pattern in patterns)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise JobError(
            explain("--set not understood", repr(override), "KEY=VALUE", "write e.g. --set train.lr=0.01")
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *sections, name = key.strip().split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise JobError(
                explain(
                    "--set reaches into a value", repr(override), "a section before the dot", "check the key"
                )
            )
    tree[name] = value


def _one_line(error: Any, name: str) -> str:
    place = ".".join(str(part) for part in error["loc"]) or "job"
    if error["type"] == "extra_forbidden":
        known = _known_keys(error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]!r}?" if near else "remove it"
        return explain(
            f"unknown key {place!r} in {name}", repr(error["input"]), f"one of {', '.join(known)}", remedy
        )
    if error["type"] == "missing":
        return explain(f"key {place!r} is missing in {name}", "nothing", "a value", "add it")
    found = " ".join(repr(error["input"]).split())
    message = error["msg"].removeprefix("Value error, ")
    return explain(f"bad value for {place!r} in {name}", found[:80], message, "correct it")


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """Walk the sections to the one in which an unknown key was met."""
    section: type[BaseModel] = Job
    for part in location:
        if isinstance(part, int):
            continue
        annotation = section.model_fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        section = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return sorted(section.model_fields)
