"""Networks by name: plain nn.Modules, one network per file."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable

from torch import nn

from outsize.errors import ModelError, explain
from outsize.models.unet import UNet

MODELS: dict[str, Callable[..., nn.Module]] = {"unet": UNet}


def build_model(name: str, *, num_classes: int, in_channels: int, **options: object) -> nn.Module:
    """Build the named network with its options."""
    builder = MODELS.get(name)
    if builder is None:
        raise ModelError(
            explain(
                "unknown model", repr(name), "one of " + ", ".join(sorted(MODELS)), _nearest(name, MODELS)
            )
        )
    known = [option for option in inspect.signature(builder).parameters if option not in _ALWAYS_GIVEN]
    for option in options:
        if option not in known:
            needed = "one of " + ", ".join(known)
            raise ModelError(
                explain(f"unknown option of model {name}", repr(option), needed, _nearest(option, known))
            )
    return builder(num_classes=num_classes, in_channels=in_channels, **options)


_ALWAYS_GIVEN = ("num_classes", "in_channels")


def _nearest(name: str, known: Iterable[str]) -> str:
    candidates = list(known)
    close = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.3)
    return f"did you mean {close[0]!r}?" if close else f"choose {candidates[0]!r}, for example"
