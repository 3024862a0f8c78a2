"""Networks by name: plain nn.Modules, one network per file."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from torch import nn

from outsize.errors import ModelError, explain
from outsize.job.models import LIBRARY_PREFIX, LOGITS, NOT_OF_PIXELS, OF_OBJECTS, refuse_unknown_options
from outsize.models.convlstm import ConvLSTM
from outsize.models.dense import FCOS_NAME, RETINANET_NAME, DenseDetector
from outsize.models.digits import DigitNet
from outsize.models.erfnet import ERFNet
from outsize.models.fastbox import FastBox
from outsize.models.fasterrcnn import FASTER_NAME, FasterRCNN
from outsize.models.gscnn import GSCNN
from outsize.models.maskrcnn import MaskRCNN
from outsize.models.pretrained import build_smp, start_detector
from outsize.models.unet import UNet
from outsize.models.wider_resnet import WiderResNet38

MODELS: dict[str, Callable[..., nn.Module]] = {
    "unet": UNet,
    "convlstm": ConvLSTM,
    "wider_resnet38": WiderResNet38,
    "erfnet": ERFNet,
    "gscnn": GSCNN,
    "maskrcnn": MaskRCNN,
    "digits": DigitNet,
    "fastbox": FastBox,
    FCOS_NAME: partial(DenseDetector, FCOS_NAME),
    RETINANET_NAME: partial(DenseDetector, RETINANET_NAME),
    FASTER_NAME: FasterRCNN,
}


def build_model(
    name: str, *, num_classes: int, in_channels: int, bands: Sequence[str] = (), **options: object
) -> nn.Module:
    """Build the named network with its options; what there is to say of its weights becomes a warning.

    `bands` are the names of the bands; only pretrained weights need them.
    """
    model, notes = build_with_notes(
        name, num_classes=num_classes, in_channels=in_channels, bands=bands, **options
    )
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return model


def build_with_notes(
    name: str, *, num_classes: int, in_channels: int, bands: Sequence[str] = (), **options: object
) -> tuple[nn.Module, tuple[str, ...]]:
    """Build the named network, and say in a line each where its weights come from and what did not fit.

    `logits` = 1, of two classes, gives it one output: the sigmoid of that is the probability of the second class.
    """
    if name not in NOT_OF_PIXELS:
        num_classes = _num_logits(num_classes, options.pop(LOGITS, None))
    if name.startswith(LIBRARY_PREFIX):
        return build_smp(name, num_classes=num_classes, in_channels=in_channels, bands=bands, **options)
    builder = MODELS.get(name)
    if builder is None:
        needed = f"one of {', '.join(sorted(MODELS))}, or {LIBRARY_PREFIX}ARCHITECTURE/ENCODER"
        near = f"did you mean '{LIBRARY_PREFIX}{name}'?" if "/" in name else _nearest(name, MODELS)
        raise ModelError(explain("unknown model", repr(name), needed, near))
    refuse_unknown_options(name, options)
    starts = name in OF_OBJECTS and "weights" in options
    weights = str(options.pop("weights")) if starts else "none"
    build = partial(builder, **options)
    model = build(num_classes=num_classes, in_channels=in_channels)
    if not starts:
        return model, ()
    wider = partial(build, num_classes=num_classes + 1, in_channels=in_channels + 1)
    return model, start_detector(model, weights, bands, wider)


def _num_logits(num_classes: int, logits: object) -> int:
    if logits is None:
        return num_classes
    if logits != 1 or num_classes != 2:
        found, need = (
            f"logits = {logits!r} and {num_classes} classes",
            "1 logit for 2 classes, or one for each",
        )
        raise ModelError(explain("logits do not fit the classes", found, need, "leave model.logits out"))
    return 1


def logits_of(classes: Sequence[str], options: Mapping[str, object]) -> tuple[str, ...]:
    """Name the classes that a network built with these options has a logit for: one logit is the second class's."""
    return tuple(classes[1:] if options.get(LOGITS) == 1 else classes)


def input_maps(model: nn.Module) -> tuple[str, ...]:
    """Name the maps that a model wants behind the bands of its input; most want none."""
    names: tuple[str, ...] = getattr(model, "input_maps", ())
    return names


def num_inputs(model: nn.Module, num_bands: int) -> int:
    """Count the channels that a model's input has for pictures of so many bands."""
    return num_bands + len(input_maps(model))


def label_stride(model: nn.Module) -> int:
    """Return of how many pixels a side one logit is while the model trains: 1, but for outputs of a part of it."""
    outputs: dict[str, int] = getattr(model, "outputs", {})
    return outputs.get(getattr(model, "output", ""), 1)


def _nearest(name: str, known: Iterable[str]) -> str:
    candidates = list(known)
    close = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.3)
    return f"did you mean {close[0]!r}?" if close else f"choose {candidates[0]!r}, for example"
