"""Weights that a detector starts from: a file, or what torchvision publishes of its encoder or of all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.models.pretrained.fit import fit_weights, read_weights
from outsize.models.pretrained.widen import (
    RGB,
    check_named,
    find_ends,
    match_bands,
    spread_colours,
    take,
    unknown_bands,
)

_PLACES = ("", "backbone.body.", "backbone.", "encoder.")  # where the names in a file may belong


def start_detector(
    model: nn.Module, weights: str, bands: Sequence[str], wider: Callable[[], nn.Module]
) -> tuple[str, ...]:
    """Fill a model with weights "imagenet" (the encoder), "coco" (all) or of a file; say what was kept and what not.

    `published` of the model is torchvision's name for each of the first two.
    """
    if weights == "none":
        return ()
    published: dict[str, str] = getattr(model, "published", {})
    path = Path(weights).expanduser()
    source: tuple[str, ...] = RGB
    if weights in published:
        given, why_not = _download(weights, published[weights])
        if given is None:
            return (f"weights {weights!r} not found ({why_not}): the model starts at random",)
    elif path.is_file():
        given, named = read_weights(path)
        source = named or RGB
    else:
        needed, remedy = f"none, {', '.join(published)}, or a file of weights", "check the path"
        raise ModelError(explain("unknown weights of this model", repr(weights), needed, remedy))
    notes: list[str] = []
    ends = find_ends(model, wider)

    def first(value: Tensor, own: Tensor) -> Tensor | None:
        if value.shape[0] != own.shape[0] or value.shape[1] != len(source):
            return None
        return _for_bands(value, source, bands, notes)

    check_named(bands, next(model.state_dict()[name].shape[1] for name in ends.first), _why(weights))
    fitted = fit_weights(model, _placed(given, model), dict.fromkeys(ends.first, first))
    if not fitted.kept:
        needed, remedy = (
            "weights of this detector or of its encoder",
            f"take those of {published['imagenet']}",
        )
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


def _download(weights: str, name: str) -> tuple[dict[str, Tensor] | None, str]:
    from torchvision import models  # type: ignore[import-untyped]

    published: Any = models.get_model_weights(name)
    try:
        chosen = published.COCO_V1 if weights == "coco" else published.IMAGENET1K_V1
        return dict(chosen.get_state_dict(progress=False)), ""
    except OSError as error:  # no network, or no room for the file
        return None, str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _why(weights: str) -> str:
    return f"weights {weights!r} cannot be given to bands"
