"""A module that brings no card: which part of its answer is the map of logits, and how it wants to be called.

It is looked at on shapes alone, and called through a hook for as long as it is ours: no module is put around it, so
that its layers keep their names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from outsize.card import Card
from outsize.data.statistics import BandStatistics
from outsize.errors import ModelError, TraceError, explain, listed
from outsize.infer.unready import refuse_unready
from outsize.job import ClassSpec, parse_colour
from outsize.measure.graphs import example_shape
from outsize.measure.tracing import AnswerLeaf, answer_on_shapes
from outsize.models import input_maps, num_inputs
from outsize.raster.reading import SceneInfo

_FAVOURITE = "['out']"  # torchvision's name for it
_COLOURS = (
    "#8dd3c7",
    "#33691e",
    "#1f78b4",
    "#fdbf6f",
    "#e31a1c",
    "#a6761d",
    "#6a3d9a",
    "#ffff99",
    "#fb9a99",
    "#666666",
)


@dataclass(frozen=True)
class Manner:
    """How a module is called, and what is taken of its answer."""

    leaf: int  # of all that it returns, the map of logits
    num_logits: int
    squashed: str  # "sigmoid" or "softmax": what makes probabilities of its logits already
    channels_last: bool
    said: str  # what was taken, in words; "": it returns logits and nothing else


def look_at(model: nn.Module, num_bands: int) -> Manner:
    """Find out how a module is to be called; refuse one whose answer holds no map of logits."""
    refuse_unready(model)
    shape, channels_last, parts = _answered(model, example_shape(num_inputs(model, num_bands)))
    fits = [number for number, part in enumerate(parts) if _is_map(part, shape)]
    if not fits:
        found = listed([" x ".join(map(str, each.shape)) or f"a {each.kind}" for each in parts]) or "nothing"
        need = f"sample, class, row, column for a batch of {' x '.join(map(str, shape))}"
        remedy = "wrap the model so that it returns its logits, as large as the picture"
        raise ModelError(explain("model's output is no map of logits", found, need, remedy))
    leaf = next((number for number in fits if parts[number].name == _FAVOURITE), fits[0])
    taken = parts[leaf]
    num_logits = taken.shape[1]
    squashed = _squashed(taken, num_logits)
    if num_logits == 1 and taken.kind.startswith(("int", "uint")):
        need, remedy = "logits, or probabilities", "return what argmax or the threshold is taken of"
        raise ModelError(explain("the model returns ids of classes", f"a map of {taken.kind}", need, remedy))
    if len(fits) > 1 and taken.name != _FAVOURITE:
        others = listed([parts[number].name for number in fits if number != leaf])
        text = f"the model returns several maps: {taken.name} is taken for its logits, not {others}"
        warnings.warn(text, stacklevel=3)
    return Manner(leaf, num_logits, squashed, channels_last, _in_words(parts, taken, squashed))


def _answered(
    model: nn.Module, example: tuple[int, ...]
) -> tuple[tuple[int, ...], bool, tuple[AnswerLeaf, ...]]:
    """Return the first batch that the module answers to, whether it lay channels last, and the answer.

    A view over samples and channels wants each plane by itself, which shows with two samples. One that takes a single
    sample has no objection to a scene in one window.
    """
    failed: TraceError | None = None
    for shape, channels_last in (((2, *example[1:]), True), ((2, *example[1:]), False), (example, True)):
        try:
            return shape, channels_last, answer_on_shapes(model, shape, channels_last=channels_last)
        except TraceError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _is_map(part: AnswerLeaf, shape: Sequence[int]) -> bool:
    return len(part.shape) == 4 and (part.shape[0], *part.shape[2:]) == (shape[0], *shape[2:])


def _squashed(taken: AnswerLeaf, num_logits: int) -> str:
    """Name what makes probabilities of the logits inside of the module: they would be squashed a second time."""
    if taken.made_by == "sigmoid" and num_logits == 1:
        return "sigmoid"
    return "softmax" if taken.made_by == "softmax" and taken.along == 1 else ""


def _in_words(parts: Sequence[AnswerLeaf], taken: AnswerLeaf, squashed: str) -> str:
    names = f"{taken.name} of {listed([each.name for each in parts])}" if taken.name else ""
    made = f"probabilities by {squashed}, taken back to logits" if squashed else ""
    return ": ".join(each for each in (names, made) if each)


@contextmanager
def called_so(model: nn.Module, manner: Manner) -> Iterator[None]:
    """Inside the block the module returns its logits alone; after it, it is as it was, but where it has moved to."""
    modes = [(module, module.training) for module in model.modules()]
    plane_by_plane = [each for each in model.parameters() if each.dim() == 4 and each.is_contiguous()]
    hook = None
    if manner.said:
        hook = model.register_forward_hook(_taking(manner))
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()
        for module, mode in modes:
            module.training = mode
        for each in plane_by_plane:  # its own code may count on the layout
            each.data = each.data.contiguous()


def _taking(manner: Manner) -> Callable[[nn.Module, Any, Any], Tensor]:
    def take(_: nn.Module, __: Any, answer: Any) -> Tensor:
        taken: Tensor = tree_leaves(answer)[manner.leaf]
        if not manner.squashed:
            return taken
        least = torch.finfo(taken.dtype).eps
        shares = taken.clamp(least, 1 - least)
        return (shares / (1 - shares)).log() if manner.squashed == "sigmoid" else shares.log()

    return take


def card_of(
    model: nn.Module,
    manner: Manner,
    info: SceneInfo,
    statistics: tuple[Sequence[float], Sequence[float]] | None,
    task: str,
) -> Card:
    """Describe a module: as many classes as it has logits, or two where it has one, named by number."""
    mean, std = statistics or ([0.0] * info.num_bands, [1.0] * info.num_bands)
    if len(mean) != info.num_bands or len(std) != info.num_bands:
        found, need = f"{len(mean)} means and {len(std)} deviations", f"{info.num_bands} of each"
        raise ModelError(
            explain(f"statistics do not fit {info.path}", found, need, "give one of each for every band")
        )
    num_classes = max(2, manner.num_logits)
    if num_classes > 254:
        need, remedy = "at most 254 classes", "give a model with one logit per class"
        raise ModelError(explain("model has too many outputs", num_classes, need, remedy))
    return Card(
        task=task,
        model=type(model).__name__,
        options={} if manner.num_logits > 1 else {"logits": 1},
        classes=tuple(
            ClassSpec(
                name=f"class {number}", value=number, colour=parse_colour(_COLOURS[number % len(_COLOURS)])
            )
            for number in range(num_classes)
        ),
        bands=info.band_names,
        dtype=info.dtype,
        statistics=BandStatistics(tuple(mean), tuple(std)),
        maps=input_maps(model),
    )
