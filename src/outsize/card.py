"""What a model is and expects, its card, and weights that carry it.

A checkpoint is one safetensors file whose header carries the card as JSON: weights and card cannot part, the file is
written beside its name and renamed, and loading it runs no code. Parameter names are the model's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import FiniteFloat, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from outsize.data.statistics import BandStatistics
from outsize.errors import ModelError, RunError, explain
from outsize.files.trees import json_tree
from outsize.job import ClassSpec
from outsize.job.mistakes import in_short
from outsize.measure.finite import bad_weight
from outsize.models import build_model, input_maps
from outsize.runs import write_beside, write_json

CARD_VERSION = 1


@dataclass(frozen=True)
class Card:
    """What a model is and what it expects of a scene."""

    task: str
    model: str
    options: Mapping[str, Any]
    classes: tuple[ClassSpec, ...]
    bands: tuple[str, ...]  # in the order that the first layer sees; "" where a band has no name
    dtype: str  # of the training scenes
    statistics: BandStatistics
    resolution: tuple[float, float] | None = None  # rows, columns; metres on Earth per pixel
    trained: Mapping[str, Any] = field(default_factory=dict)  # phase, epoch, step, score
    maps: tuple[str, ...] = ()  # made of the pixels, and behind the bands in the model's input

    def build(self) -> nn.Module:
        """Build the architecture, with weights as they come: those that training began with are not fetched."""
        options = {key: value for key, value in self.options.items() if key != "weights"}
        return build_model(self.model, num_classes=len(self.classes), in_channels=len(self.bands), **options)


def save_checkpoint(path: Path, model: nn.Module, card: Card) -> None:
    """Write weights and card, and the card once more beside it for people to read.

    A model of several outputs is described as it is now: the one that answered while it was scored will answer again.
    """
    settings: Mapping[str, Any] = getattr(
        model, "settings", {}
    )  # what the job left to the model is listed, too
    card = replace(card, maps=input_maps(model), options={**card.options, **settings})
    if hasattr(model, "outputs"):
        card = replace(card, options={**card.options, "output": model.output})
    classes = [each.model_dump() for each in card.classes]
    tree = {"version": CARD_VERSION, **asdict(replace(card, classes=())), "classes": classes}
    with write_beside(path) as temporary:
        write_tensors(temporary, weights_of(model), {"card": json.dumps(tree)})
    write_json(path.with_suffix(".json"), tree)


def load_checkpoint(path: Path) -> tuple[nn.Module, Card]:
    """Build the model a checkpoint describes and fill in its weights."""
    tensors, header = read_tensors(path)
    if "card" not in header:
        remedy = "name a checkpoint that `outsize train` wrote"
        raise ModelError(explain(f"{path} has no card", "weights alone", "a card in its header", remedy))
    try:
        card = _card_from(json_tree(header["card"]), path)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:  # pydantic's are ValueErrors
        need, remedy = "the card that `outsize train` writes", "take another checkpoint or train again"
        found = in_short(error) if isinstance(error, ValidationError) else " ".join(str(error).split())
        raise ModelError(explain(f"card of {path} cannot be read", found, need, remedy)) from error
    model = card.build()
    fill_in(model, tensors, path)
    refuse_bad(model, path, "train again, with a lower train.lr, or take another checkpoint")
    return model, card


def _card_from(tree: dict[str, Any], path: Path) -> Card:
    version = tree.pop("version", None)
    if version != CARD_VERSION:
        need = f"card version {CARD_VERSION}"
        raise ModelError(
            explain(
                f"{path} is of another version",
                f"card version {version}",
                need,
                "use the outsize that wrote it",
            )
        )
    classes = tuple(ClassSpec.model_validate(each) for each in tree["classes"])
    if len({each.name for each in classes}) != len(classes) or not classes:
        raise ValueError("no classes, or two of one name")
    numbers = TypeAdapter(tuple[FiniteFloat, ...])
    mean, std = (numbers.validate_python(tree["statistics"][name], strict=False) for name in ("mean", "std"))
    resolution = None if tree["resolution"] is None else numbers.validate_python(tree["resolution"])
    texts = TypeAdapter(tuple[str, ...])
    tree |= {name: texts.validate_python(tree.get(name, ())) for name in ("bands", "maps")}
    if not len(mean) == len(std) == len(tree["bands"]) or min(std, default=0) <= 0:
        raise ValueError(f"{len(tree['bands'])} bands with {len(mean)} means and deviations {std}")
    if resolution is not None and (len(resolution) != 2 or min(resolution) <= 0):
        raise ValueError(f"pixels of {resolution}")
    for name, kind in (("task", str), ("model", str), ("dtype", str), ("options", dict), ("trained", dict)):
        if not isinstance(tree[name], kind):
            raise TypeError(f"{name} is {str(tree[name])[:60]}")
    statistics = BandStatistics(mean, std)
    known = {
        "classes": classes,
        "statistics": statistics,
        "resolution": resolution,
    }
    return Card(**{**tree, **known})


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model on the host."""
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    """Write tensors and what a header says of them."""
    try:
        save_file(tensors, path, metadata=header)
    except SafetensorError as error:  # the library's word for a full disk
        raise OSError(str(error)) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors of a file, and its header."""
    if not path.is_file():
        raise RunError(explain(f"{path} is missing", "nothing", "a checkpoint", "run `outsize train` first"))
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:  # as its header is odd
        remedy = "take another checkpoint or train again"
        raise ModelError(
            explain(
                f"{path} cannot be read", " ".join(str(error).split()), "a whole safetensors file", remedy
            )
        ) from error


def fill_in(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Fill in the weights of a model; refuse those of another."""
    mine = model.state_dict()
    strange, missing = sorted(tensors.keys() - mine.keys()), sorted(mine.keys() - tensors.keys())
    if strange and missing:  # as when layers of a model got other names
        found = f"{strange[0]} ({len(strange)} such names), and no {missing[0]}"
        need = "the layers of the model that its card describes"
        remedy = "train again, or go on with the earlier outsize that wrote them"
        raise ModelError(explain(f"weights in {path} are those of other layers", found, need, remedy))
    differing = sorted(
        name
        for name in mine.keys() | tensors.keys()
        if name not in mine or name not in tensors or mine[name].shape != tensors[name].shape
    )
    if differing:
        need, remedy = "the weights its card describes", "take the card and weights of one run"
        raise ModelError(explain(f"weights in {path} do not fit", f"{differing[0]} differs", need, remedy))
    model.load_state_dict(dict(tensors))


def refuse_bad(model: nn.Module, path: Path, remedy: str) -> None:
    """Refuse weights that are no numbers: each answer would be that of class 0."""
    name = bad_weight(model)
    if name is not None:
        found = f"NaN or infinity in {name}"
        raise ModelError(explain(f"weights in {path} are not finite", found, "numbers", remedy))


def to_device(model: nn.Module, device: torch.device, *, channels_last: bool = True) -> nn.Module:
    """Move a model to where it runs; channels last is the faster layout on GPUs and CPUs alike."""
    # in this order: what is laid out again on a GPU leaves gaps between weights there, for good
    if channels_last:
        for each in (*model.parameters(), *model.buffers()):
            if each.dim() == 4:  # module.to() would refuse a model with weights of five axes, as of Conv3d
                each.data = each.data.to(memory_format=torch.channels_last)
    return model.to(device)
