"""Train, run and measure vision models on images, batches and models that outsize one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outsize.library.predict import predict
    from outsize.library.verify import verify
    from outsize.models import build_model
    from outsize.planning.within import within

__all__ = ["__version__", "build_model", "predict", "verify", "within"]
__version__ = "0.1.0"

# Loaded on first use, so that `import outsize` (and `outsize --help`) does not wait for torch.
_HOMES = {
    "predict": "outsize.library.predict",
    "verify": "outsize.library.verify",
    "build_model": "outsize.models",
    "within": "outsize.planning.within",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outsize' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
