"""How far a network looks, derived once for all tests that have the same one: each takes a second to derive."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from outsize.tiles.halo import Halo

_KNOWN = ("torch.", "torchvision.", "timm.", "segmentation_models_pytorch.", "outsize.")
_PLAIN = (bool, int, float, str, tuple, type(None))

Derive = Callable[..., Halo]


def remembering(derive: Derive) -> Derive:
    """Return `derive` with a memory for networks of libraries and of outsize, not for those that tests make up.

    It lies in the cache folder of the tests, so that processes they start know what others have derived.
    """
    folder = Path(os.environ["XDG_CACHE_HOME"], "halos")
    folder.mkdir(exist_ok=True)

    def recall_or_derive(model: nn.Module, in_channels: int, largest_px: Any = None) -> Halo:
        if not all(type(each).__module__.startswith(_KNOWN) for each in model.modules()):
            return derive(model, in_channels, largest_px)
        key = repr((_about(model), in_channels, largest_px))
        path = folder / hashlib.sha256(key.encode()).hexdigest()
        if not path.exists():
            written = path.with_suffix(f".{os.getpid()}")
            written.write_bytes(pickle.dumps(derive(model, in_channels, largest_px)))
            written.replace(path)
        halo: Halo = pickle.loads(path.read_bytes())
        return halo

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
