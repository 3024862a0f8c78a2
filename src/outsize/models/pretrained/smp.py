"""Networks of segmentation-models-pytorch by name, "smp:Unet/resnet18", for any size and any bands.

The library takes seconds to import and is imported only where such a name is asked for.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.job.models import LIBRARY_PREFIX
from outsize.models.pretrained.fetch import download, library, pretrained_names
from outsize.models.pretrained.fit import Remake, fit_weights, read_weights
from outsize.models.pretrained.widen import (
    RGB,
    check_named,
    find_ends,
    match_bands,
    spread_colours,
    take,
    unknown_bands,
)

# Set by us, or they would change what a model returns.
_NOT_OPTIONS = (
    "self",
    "encoder_name",
    "encoder_weights",
    "in_channels",
    "classes",
    "activation",
    "aux_params",
)
_COARSER = {"PAN": 8}  # its pyramid halves three times what the encoder leaves
_PLACES = ("", "encoder.", "encoder.model.")  # where an encoder's own weights may belong


class AnySize(nn.Module):
    """Before a network that wants multiples of its stride: zeros below and to the right, cut off again after it.

    It is put in front as a class and not around as a module, so that the names of the weights stay the library's.
    """

    stride: int
    fills_up = True

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of the same height and width as `images`."""
        height, width = images.shape[-2:]
        missing = (0, -width % self.stride, 0, -height % self.stride)
        if not any(missing):  # nothing to pad is nothing to trace
            return self._run(images)
        return self._run(F.pad(images, missing))[..., :height, :width]

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        """Pickle and copy by the library's class: one that is put together here is not found by its name."""
        (network,) = (each for each in type(self).__bases__ if each is not AnySize)
        return _empty, (network,), self.__dict__

    def _run(self, images: Tensor) -> Tensor:
        try:
            return cast(Tensor, super().forward(images))
        except ValueError as error:  # of a norm: where the whole picture is pooled to one value a channel
            if "more than 1 value per channel" not in str(error):
                raise
            what = f"{type(self).__name__} cannot be trained on one picture at a time"
            needed = "at least 2 for each device, for a branch norms a single value of each picture"
            remedy = "set train.batch to 2 or more for each device"
            raise ModelError(explain(what, f"{len(images)} picture", needed, remedy)) from error


def build_smp(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    bands: Sequence[str] = (),
    weights: object = "none",
    **options: object,
) -> tuple[nn.Module, tuple[str, ...]]:
    """Build "smp:ARCHITECTURE/ENCODER" and say what there is to say of the weights it starts from."""
    architecture, encoder = _parse(name)
    builder = _architectures()[architecture]
    _check_options(name, builder, options)
    if weights != "none":
        check_named(bands, in_channels, f"weights {weights!r} cannot be given to bands")

    def build(more: int = 0) -> nn.Module:
        try:
            return builder(
                encoder_name=encoder,
                encoder_weights=None,
                in_channels=in_channels + more,
                classes=num_classes + more,
                **options,
            )
        except (ValueError, TypeError, KeyError, RuntimeError, NotImplementedError, AssertionError) as error:
            found = " ".join(str(error).split())
            remedy = "change the model's options or its encoder"
            raise ModelError(explain(f"{name} cannot be built", found, "options that fit", remedy)) from error

    model = build()
    model.stride = _COARSER.get(architecture, 1) * int(model.encoder.output_stride)  # type: ignore[union-attr,arg-type,assignment]
    notes = () if weights == "none" else _start(model, encoder, str(weights), bands, lambda: build(1))
    network: Any = type(model)
    model.__class__ = _any_size(network)
    return model, notes


def _start(
    model: nn.Module, encoder: str, weights: str, bands: Sequence[str], wider: Callable[[], nn.Module]
) -> tuple[str, ...]:
    source_bands: tuple[str, ...]
    known = pretrained_names(encoder)
    path = Path(weights).expanduser()
    if weights in known:
        given, why_not = download(encoder, weights)
        if given is None:
            return (f"weights {weights!r} of {encoder} not found ({why_not}): the model starts at random",)
        given, source_bands = {f"encoder.{name}": value for name, value in given.items()}, RGB
    elif path.is_file():
        given, source_bands = read_weights(path)
        given = _placed(given, model.state_dict())
    else:
        needed = f"{', '.join(('none', *known))}, or a file of weights"
        remedy = _did_you_mean(weights, known) or "check the path"
        raise ModelError(explain(f"unknown weights of {encoder}", repr(weights), needed, remedy))
    notes: list[str] = []
    ends = find_ends(model, wider)
    remake = functools.partial(_remake_first, source_bands=source_bands, bands=bands, notes=notes)
    fitted = fit_weights(model, given, dict.fromkeys(ends.first, cast(Remake, remake)))
    if ends.heads & set(fitted.kept):
        notes.append("the weights do not name their classes: the head's rows are taken in their order")
    if not fitted.kept:
        needed, remedy = f"weights of {encoder}", "take the weights of this encoder"
        raise ModelError(explain(f"{weights} fits nothing of the model", next(iter(given)), needed, remedy))
    return (f"started from {weights}: {fitted.summary}", *dict.fromkeys(notes))


def _remake_first(
    given: Tensor, own: Tensor, *, source_bands: Sequence[str], bands: Sequence[str], notes: list[str]
) -> Tensor | None:
    num_source = given.shape[1]
    if len(source_bands) == num_source and tuple(source_bands) != RGB and all(source_bands):
        matches = match_bands(source_bands, bands)
        new = [band for band, match in zip(bands, matches, strict=True) if match is None]
        if len(new) == len(bands):
            notes.append(f"no band of the weights ({', '.join(source_bands)}) is one of {', '.join(bands)}")
            return None
        notes += [f"bands that begin with zeros: {', '.join(new)}"] if new else []
        return take(given, matches, axis=1)
    if num_source == len(RGB):
        unknown = unknown_bands(bands)
        notes += [f"bands of no known wavelength begin with zeros: {', '.join(unknown)}"] if unknown else []
        return spread_colours(given, bands)
    if num_source == own.shape[1]:
        notes.append(f"the weights do not name their bands: taken to be {', '.join(bands)} in this order")
        return given
    notes.append(f"the weights are for {num_source} unnamed bands: the first layer starts at random")
    return None


def _placed(given: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name weights as the model does: they may be of the whole model or of its encoder alone."""
    placed = [{prefix + name: value for name, value in given.items()} for prefix in _PLACES]
    return max(placed, key=lambda each: len(each.keys() & mine.keys()))


def _architectures() -> dict[str, Callable[..., nn.Module]]:
    return {each.__name__: each for each in library().MODEL_ARCHITECTURES_MAPPING.values()}


def _encoders(like: str) -> list[str]:
    if not like.startswith("tu-"):
        return list(library().encoders.get_encoder_names())
    import timm

    bare = {f"tu-{name}" for name in timm.list_models()}
    return sorted(bare | {f"tu-{name}" for name in timm.list_pretrained()})


def _parse(name: str) -> tuple[str, str]:
    architecture, slash, encoder = name.removeprefix(LIBRARY_PREFIX).partition("/")
    known = list(_architectures())
    if architecture not in known:
        _refuse("architecture", name, architecture, known)
    if not slash or not encoder:
        needed = f"{LIBRARY_PREFIX}ARCHITECTURE/ENCODER"
        remedy = f"write e.g. {LIBRARY_PREFIX}{architecture}/resnet18"
        raise ModelError(explain("model without an encoder", repr(name), needed, remedy))
    encoders = _encoders(encoder)
    if encoder not in encoders:
        _refuse("encoder", name, encoder, encoders)
    return architecture, encoder


def _refuse(what: str, name: str, found: str, known: Sequence[str]) -> None:
    few = ", ".join(known) if len(known) < 20 else f"one of {len(known)}, such as {', '.join(known[:3])}"
    remedy = _did_you_mean(found, known) or f"choose {known[0]!r}, for example"
    raise ModelError(explain(f"unknown {what} in {name}", repr(found), few, remedy))


def _did_you_mean(found: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(found.lower(), by_lower, n=1, cutoff=0.4)
    return f"did you mean {by_lower[close[0]]!r}?" if close else ""


def _check_options(name: str, builder: Callable[..., nn.Module], options: Mapping[str, object]) -> None:
    parameters = inspect.signature(builder).parameters.values()
    known = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    known = [each for each in known if each not in _NOT_OPTIONS]
    for option in options:
        if option not in known:
            is_number = option == "classes"  # the library's name for it
            remedy = (
                "set logits = 1 for two classes" if is_number else _did_you_mean(option, known) or "remove it"
            )
            needed = "one of " + ", ".join(("weights", *known))
            raise ModelError(explain(f"unknown option of model {name}", repr(option), needed, remedy))


def _empty(network: Any) -> nn.Module:
    made: nn.Module = object.__new__(_any_size(network))
    return made


@functools.cache
def _any_size(network: Any) -> Any:
    return type(network.__name__, (AnySize, network), {"__module__": __name__, "__doc__": network.__doc__})
