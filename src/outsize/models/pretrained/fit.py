"""Weights from a file into a model that they fit only in part, with a list of what was kept and what was not."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from outsize.errors import ModelError, explain

Remake = Callable[[Tensor, Tensor], Tensor | None]
"""Makes a weight for the model from the given one and the model's own; None where it cannot."""

_WRAPPINGS = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class Fitted:
    """What became of given weights, by name."""

    kept: tuple[str, ...]
    remade: tuple[str, ...]  # made from the given ones for other bands or classes
    dropped: tuple[str, ...]  # given, but the model has no such place or another shape
    fresh: tuple[str, ...]  # of the model, and given by nobody

    @property
    def summary(self) -> str:
        """One line for people."""
        text = f"{len(self.kept)} weights kept"
        for verb, names in (("re-made", self.remade), ("dropped", self.dropped), ("new", self.fresh)):
            text += f", {len(names)} {verb} ({_listed(names)})" if names else ""
        return text


def fit_weights(model: nn.Module, given: Mapping[str, Tensor], remakes: Mapping[str, Remake]) -> Fitted:
    """Fill a model with what fits; `remakes` makes those weights that depend on bands or classes."""
    mine = model.state_dict()
    filled: dict[str, Tensor] = {}
    kept: list[str] = []
    remade: list[str] = []
    dropped: list[str] = []
    for name, value in given.items():
        own = mine.get(name)
        made = value
        if own is not None and name in remakes:
            made = remakes[name](value, own)  # type: ignore[assignment]
        if own is None or made is None or made.shape != own.shape:
            dropped.append(name)
            continue
        filled[name] = made.to(own.dtype)
        same = made.shape == value.shape and torch.equal(made, value)
        (kept if same else remade).append(name)
    model.load_state_dict({**mine, **filled})
    fresh = tuple(name for name in mine if name not in filled)
    return Fitted(tuple(kept), tuple(remade), tuple(dropped), fresh)


def read_weights(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Read a file of named tensors without running any code in it, and the band names that it may carry."""
    bands: tuple[str, ...] = ()
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                tree: Any = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                bands = tuple(json.loads((file.metadata() or {}).get("card", "{}")).get("bands", ()))
        else:
            tree = torch.load(path, map_location="cpu", weights_only=True)
    except (
        SafetensorError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        OSError,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        found = str(error).strip().splitlines()
        needed = "a safetensors file, or a state dict that torch.load reads with weights_only=True"
        remedy = "save it again with torch.save(model.state_dict(), ...) or as safetensors"
        raise ModelError(
            explain(f"{path} cannot be read", found[0] if found else error, needed, remedy)
        ) from error
    for wrapping in _WRAPPINGS:
        if isinstance(tree, Mapping) and isinstance(tree.get(wrapping), Mapping):
            tree = tree[wrapping]
    tensors = _tensors(tree)
    if not tensors:
        needed, remedy = "tensors by name", "save it again with torch.save(model.state_dict(), ...)"
        raise ModelError(explain(f"{path} holds no weights", type(tree).__name__, needed, remedy))
    return tensors, bands


def _tensors(tree: object) -> dict[str, Tensor]:
    if not isinstance(tree, Mapping):
        return {}
    return {
        str(name).removeprefix("module."): value for name, value in tree.items() if isinstance(value, Tensor)
    }


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
