"""What in a model makes samples or pixels depend on each other while it trains."""

from __future__ import annotations

from torch import nn

OVER_SAMPLES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
OVER_PIXELS = (*OVER_SAMPLES, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm)


DROPS_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)


def first_channel_dropout(model: nn.Module) -> str | None:
    """Name the first dropout of whole channels: in each tile it would drop others."""
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, DROPS_CHANNELS)]
    return (
        f"{found[0][0]} ({type(found[0][1]).__name__}) drops whole channels, in each tile others"
        if found
        else None
    )


def norms_over(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[tuple[str, nn.Module]]:
    """Return path and module of all norms of these kinds."""
    return [(path, module) for path, module in model.named_modules() if isinstance(module, kinds)]


def first_norm(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> str | None:
    """Name the first norm of these kinds, and how many there are; None where there is none."""
    norms = norms_over(model, kinds)
    if not norms:
        return None
    path, module = norms[0]
    more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
    return f"{path} ({type(module).__name__}){more} take means across the parts of a batch"
