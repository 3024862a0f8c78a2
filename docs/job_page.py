"""Writes docs/job.md from the job's own definition; a test keeps the page true.

python docs/job_page.py > docs/job.md
"""

from __future__ import annotations

import typing
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from outsize.job import (
    AcquireSection,
    BoxesSection,
    ClassSpec,
    ForecastSection,
    FramesSection,
    Job,
    ObjectsSection,
    Phase,
    PrepareSection,
    SplitSection,
)

_PLAIN = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    dict: "table",
    datetime: "date and time",
}
_ABOVE = """# The job file

A job is TOML. Image patterns begin at `data.root`, or at the folder of the job file. Any key can be overridden on the
command line: `--set train.lr=0.01`. An unknown key is an error that names the nearest known one.
"""
_UNET = """Options of `unet`: `levels` (5), `width` (32), `convs` per level (2), `norm` (`"batch"`, `"none"`,
`"group"`),
`upsampling` (`"transposed"`, `"nearest"`, `"bilinear"`), `zero_head` (false; true: the first answer is 0 everywhere).
In a phase, `trainable = "decoder"` means everything between
bottleneck and head: upsampling, joins with skips (`merge`) and blocks. Any model of segmentation-models-pytorch is
`"smp:Unet/resnet18"`: architecture and encoder, with `weights` = `"none"`, `"imagenet"` or a file.

With two classes, `logits = 1` gives any of these one output (smp's `classes = 1`): its sigmoid is the probability of
the second class, the loss is that of two classes, and `predict.threshold` decides.

Options of `maskrcnn` (task instances): `backbone` (`"resnet50"`, `"resnet101"`, `"resnet18"`, `"resnet34"`),
`weights` (`"none"`, `"imagenet"`, `"coco"` or a file), `norm` (`"batch"` is trained, `"frozen"` stays as in the
weights, `"group"` normalises each picture by itself), `finest_px` (4; 2 for objects of some 20 px and less: twice as
fine a pyramid, for four times the time and memory), `anchor_px` (five sizes, `[32, 64, 128, 256, 512]`; `[8, 16,
32, 64, 128]` for small objects), `anchor_ratios`, `rois_per_image` (128), `proposals_per_mpx` (4000) and
`detections_per_mpx` (1500), at least `least_proposals` (1000) and `least_detections` (100),
`score` (0.05), `nms_iou` (0.5) and `overlap_px` (192). Pictures are not resized: the model
sees them at the job's scale. To unfreeze it in stages, use three phases with `trainable = "heads"`, `"upper"`, and
none for everything.

Options of `digits` (one class for a whole picture): `width` (8) and `picture_px` (28, or `[height, width]`), the size
of its pictures, as `train.tile_px` has it.

Options of `fastbox` (task detect): `encoder` (`"vgg16_bn"`, `"vgg16"`, `"resnet18"`, `"resnet34"`, `"resnet50"`,
`"resnet101"`), `weights` (`"none"`, `"imagenet"` or a file), `scales` (`"even"`, or `"published"` for weights that were
trained on pictures that count to 255), `assignment` (`"nearest"` centre, or `"first"` object of the file, as
published), `inner_width` (500), `early_width` (256), `dropout` (0.5), `score` (0.001), `nms_iou` (0.35) and
`overlap_px` (256). It finds one object in each cell of 32 x 32 px, at most.

`torchvision:fcos_resnet50_fpn`, `torchvision:retinanet_resnet50_fpn_v2` and `torchvision:fasterrcnn_resnet50_fpn_v2`
(task detect) have the options `weights` (`"none"`, `"imagenet"`, `"coco"` or a file), `score` (0.01), `nms_iou` (0.5),
`most` (300 objects of a picture) and `overlap_px` (256); the last also `rois_per_image` (256) and `proposals` (1000).
Pictures are not resized.

Options of `convlstm` (task forecast): `width` (32), `layers` (2), `kernel` (3), `stride` (4: its memory is a quarter as
fine as the frames), `zero_head` (false) and `num_in`, the frames that it sees one after the other: as in
`data.frames`, and not needed where there are as many bands as leads.
"""

_BEFORE = {
    "acquire": AcquireSection,
    "prepare": PrepareSection,
}  # sections of verbs that come before training


def page() -> str:
    """Return the whole page."""
    parts = [_ABOVE, _table("Top level", Job, "Before the first section.")]
    for name in ("data", "model", "train", "predict", "limits", "published"):
        section = Job.model_fields[name].annotation
        assert isinstance(section, type)
        parts.append(_table(f"[{name}]", section, section.__doc__ or ""))
        if name == "data":
            parts.append(_table("[data.split]", SplitSection, SplitSection.__doc__ or ""))
            parts.append(_table("[data.frames]", FramesSection, FramesSection.__doc__ or ""))
            parts.append(_table("[[data.classes]]", ClassSpec, ClassSpec.__doc__ or ""))
        if name == "model":
            parts.append(_UNET)
        if name == "predict":
            parts.append(_table("[predict.objects]", ObjectsSection, ObjectsSection.__doc__ or ""))
            parts.append(_table("[predict.boxes]", BoxesSection, BoxesSection.__doc__ or ""))
            parts.append(_table("[predict.forecast]", ForecastSection, ForecastSection.__doc__ or ""))
        if name == "train":
            parts.append(_table("[[train.phases]]", Phase, Phase.__doc__ or ""))
    for name, section in _BEFORE.items():
        parts.append(_table(f"[{name}]", section, section.__doc__ or ""))
    return "\n".join(parts)


def _table(title: str, section: type[BaseModel], intro: str) -> str:
    lines = [f"## {title}", "", intro, "", "| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        if any(isinstance(each, type) and issubclass(each, BaseModel) for each in _kinds(field.annotation)):
            continue
        kind = 'size such as "16GiB"' if name.endswith("memory") else _kind(field.annotation)
        lines.append(f"| `{name}` | {kind} | {_default(field.default)} | {field.description or ''} |")
    return "\n".join(lines) + "\n"


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return a section, or those of which one may be left out."""
    is_union = type(None) in typing.get_args(annotation)
    return typing.get_args(annotation) if is_union else (annotation,)


def _kind(annotation: Any) -> str:
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f'"{each}"' for each in arguments)
    if int in arguments and tuple[int, int] in arguments:
        return "whole number, or two"
    if type(None) in arguments:
        return _kind(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        inner = (
            typing.get_args(arguments[0])[0] if typing.get_origin(arguments[0]) is Annotated else arguments[0]
        )
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return "tables, see below"
        if typing.get_origin(inner) is Literal:
            return "some of " + _kind(inner)
        if inner is int and len(arguments) == 2:
            return "number or list"
        return 'three numbers or "#rrggbb"' if len(arguments) == 3 else "text or list"
    return _PLAIN[origin or annotation]


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ((), {}, ""):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`" + str(list(value)).replace("'", '"') + "`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


if __name__ == "__main__":
    print(page(), end="")
