"""How far a network looks, derived once for all tests that have the same one: each takes a second to derive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from outsize.tiles.halo import Halo

_KNOWN = ("torch.", "torchvision.", "timm.", "segmentation_models_pytorch.", "outsize.")
_PLAIN = (bool, int, float, str, tuple, type(None))

Derive = Callable[..., Halo]


def remembering(derive: Derive) -> Derive:
    """Return `derive` with a memory for networks of libraries and of outsize, not for those that tests make up."""
    found: dict[Any, Halo] = {}

    def recall_or_derive(model: nn.Module, in_channels: int, largest_px: Any = None) -> Halo:
        if not all(type(each).__module__.startswith(_KNOWN) for each in model.modules()):
            return derive(model, in_channels, largest_px)
        key = (_about(model), in_channels, largest_px)
        if key not in found:
            found[key] = derive(model, in_channels, largest_px)
        return found[key]

    return recall_or_derive


def _about(model: nn.Module) -> Any:
    """Return what the graph of a network hangs on: its layers with all their numbers, and shapes of its tensors."""
    layers = tuple(
        (
            name,
            type(each),
            tuple((key, repr(value)) for key, value in vars(each).items() if isinstance(value, _PLAIN)),
        )
        for name, each in model.named_modules()
    )
    hooks = tuple(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())
    shapes = tuple(
        (name, tuple(each.shape), each.dtype, each.device) for name, each in model.state_dict().items()
    )
    return repr(model), layers, hooks, shapes
