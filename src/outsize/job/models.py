"""Names of models, known without loading one: so `check` refuses a wrong name without torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from outsize.errors import ModelError, explain

_DENSE = ("score", "nms_iou", "most", "overlap_px", "weights")
OPTIONS = {  # of each model, as its builder has them
    "convlstm": ("num_in", "width", "layers", "kernel", "stride", "zero_head"),
    "digits": ("width", "picture_px"),
    "erfnet": ("width", "dropout", "early_dropout", "output"),
    "fastbox": (
        "encoder",
        "assignment",
        "scales",
        "inner_width",
        "early_width",
        "dropout",
        "score",
        "nms_iou",
        "overlap_px",
        "weights",
    ),
    "gscnn": ("width",),
    "maskrcnn": (
        "backbone",
        "norm",
        "finest_px",
        "anchor_px",
        "anchor_ratios",
        "rois_per_image",
        "proposals_per_mpx",
        "detections_per_mpx",
        "least_proposals",
        "least_detections",
        "score",
        "nms_iou",
        "overlap_px",
        "width",
        "head_width",
        "weights",
    ),
    "torchvision:fasterrcnn_resnet50_fpn_v2": ("rois_per_image", "proposals", *_DENSE),
    "torchvision:fcos_resnet50_fpn": _DENSE,
    "torchvision:retinanet_resnet50_fpn_v2": _DENSE,
    "unet": ("levels", "width", "convs", "norm", "upsampling", "zero_head"),
    "wider_resnet38": ("width",),
}
LOGITS = "logits"  # an option of all models of pixels: one logit for two classes
_TORCHVISION = ("fasterrcnn_resnet50_fpn_v2", "fcos_resnet50_fpn", "retinanet_resnet50_fpn_v2")
DETECTORS = ("fastbox", *(f"torchvision:{name}" for name in _TORCHVISION))
OF_OBJECTS = ("maskrcnn", *DETECTORS)
NOT_OF_PIXELS = (*OF_OBJECTS, "digits")
MODEL_NAMES = tuple(OPTIONS)
LIBRARY_PREFIX = "smp:"  # of a model of segmentation-models-pytorch, whose names only the library knows


def refuse_unknown_options(name: str, options: Iterable[str]) -> None:
    """Refuse an option that a model has not; those of a library's model only the library knows."""
    if name not in OPTIONS:
        return
    known = (*OPTIONS[name], *(() if name in NOT_OF_PIXELS else (LOGITS,)))
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option.lower(), known, n=1, cutoff=0.3)
            remedy = f"did you mean {near[0]!r}?" if near else f"choose {known[0]!r}, for example"
            needed = "one of " + ", ".join(known)
            raise ModelError(explain(f"unknown option of model {name}", repr(option), needed, remedy))


def refuse_unknown_model(name: str) -> None:
    """Refuse a name that no model has; of a library's model only the form of its name is checked."""
    form = f"{LIBRARY_PREFIX}ARCHITECTURE/ENCODER"
    if name in MODEL_NAMES:
        return
    if name.startswith(LIBRARY_PREFIX):
        architecture, _, encoder = name.removeprefix(LIBRARY_PREFIX).partition("/")
        if not architecture or not encoder:
            remedy = f"write e.g. {LIBRARY_PREFIX}{architecture or 'Unet'}/resnet18"
            raise ModelError(explain("model without an encoder", repr(name), form, remedy))
        return
    if "/" in name:
        remedy = f"did you mean '{LIBRARY_PREFIX}{name}'?"
    else:
        near = difflib.get_close_matches(name.lower(), MODEL_NAMES, n=1, cutoff=0.3)
        remedy = f"did you mean {near[0]!r}?" if near else "choose 'unet', for example"
    raise ModelError(
        explain("unknown model", repr(name), f"one of {', '.join(MODEL_NAMES)}, or {form}", remedy)
    )
