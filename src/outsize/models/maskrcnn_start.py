"""Weights that Mask R-CNN starts from: a file, or what torchvision publishes of its trunk or of all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.models.weights import fit_weights, read_weights
from outsize.models.widen import (
    RGB,
    check_named,
    find_ends,
    match_bands,
    spread_colours,
    take,
    unknown_bands,
)

_PLACES = ("", "backbone.body.", "backbone.")  # where the names in a file may belong


def start_maskrcnn(
    model: nn.Module, weights: str, bands: Sequence[str], wider: Callable[[], nn.Module]
) -> tuple[str, ...]:
    """Fill a model with weights "imagenet" (the trunk), "coco" (all) or of a file; say what was kept and what not."""
    if weights == "none":
        return ()
    settings: Any = getattr(model, "settings")  # noqa: B009 (of any module)
    path, names = Path(weights).expanduser(), ("imagenet", "coco")
    source: tuple[str, ...] = RGB
    if weights in names:
        given, why_not = _download(weights, settings["backbone"])
        if given is None:
            return (f"weights {weights!r} not found ({why_not}): the model starts at random",)
    elif path.is_file():
        given, named = read_weights(path)
        source = named or RGB
    else:
        needed, remedy = f"none, {', '.join(names)}, or a file of weights", "check the path"
        raise ModelError(explain("unknown weights of maskrcnn", repr(weights), needed, remedy))
    notes: list[str] = []
    ends = find_ends(model, wider)

    def first(value: Tensor, own: Tensor) -> Tensor | None:
        if value.shape[0] != own.shape[0] or value.shape[1] != len(source):
            return None
        return _for_bands(value, source, bands, notes)

    check_named(bands, next(model.state_dict()[name].shape[1] for name in ends.first), _why(weights))
    fitted = fit_weights(model, _placed(given, model), dict.fromkeys(ends.first, first))
    if not fitted.kept:
        needed, remedy = "weights of Mask R-CNN or of its trunk", f"take those of a {settings['backbone']}"
        raise ModelError(explain(f"{weights} fits nothing of the model", next(iter(given)), needed, remedy))
    return (f"started from {weights}: {fitted.summary}", *dict.fromkeys(notes))


def _for_bands(value: Tensor, source: Sequence[str], bands: Sequence[str], notes: list[str]) -> Tensor | None:
    if tuple(source) == RGB:
        unknown = unknown_bands(bands)
        notes += [f"bands of no known wavelength begin with zeros: {', '.join(unknown)}"] if unknown else []
        return spread_colours(value, bands)
    matches = match_bands(source, bands)
    new = [band for band, match in zip(bands, matches, strict=True) if match is None]
    notes += [f"bands that begin with zeros: {', '.join(new)}"] if new else []
    return take(value, matches, axis=1) if len(new) < len(bands) else None


def _placed(given: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Put names where most of them belong in the model."""
    own = model.state_dict()
    best = max(_PLACES, key=lambda place: sum(f"{place}{name}" in own for name in given))
    return {f"{best}{name}": value for name, value in given.items()}


def _download(weights: str, backbone: str) -> tuple[dict[str, Tensor] | None, str]:
    from torchvision import models  # type: ignore[import-untyped]

    if weights == "coco" and backbone != "resnet50":
        return None, f"published for resnet50, not for {backbone}"
    published: Any = (
        models.detection.MaskRCNN_ResNet50_FPN_Weights.COCO_V1
        if weights == "coco"
        else getattr(models, f"ResNet{backbone.removeprefix('resnet')}_Weights").IMAGENET1K_V1
    )
    try:
        return dict(published.get_state_dict(progress=False)), ""
    except OSError as error:  # no network, or no room for the file
        return None, str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _why(weights: str) -> str:
    return f"weights {weights!r} cannot be given to bands"
