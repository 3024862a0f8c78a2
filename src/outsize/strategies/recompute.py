"""Runs forward so that what a plan names is made again in backward, and says where the plan was not met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from outsize.plan.plan import Recompute
from outsize.strategies.blocks import checkpointed
from outsize.strategies.saved import SavedStats, SavedTensors

Tell = Callable[[str], object]


def recomputing(
    model: nn.Module, recompute: Recompute, tell: Tell
) -> Callable[[], AbstractContextManager[None]]:
    """Return what one forward pass runs in; the first one tells what the plan knew and the model did not do.

    The model carries hooks no longer than a forward, so that others may copy and run it in between.
    """
    if not recompute.saved:
        return lambda: checkpointed(model, recompute.blocks)
    saved = SavedTensors(model, frozenset(recompute.saved))
    told = False

    @contextmanager
    def forward() -> Iterator[None]:
        nonlocal told
        with checkpointed(model, recompute.blocks), saved, saved.forward():
            yield
        if not told and saved.stats is not None:
            told = True
            text = unmet(saved.stats, len(recompute.saved))
            if text is not None:
                tell(text)

    return forward


def unmet(stats: SavedStats, num_asked: int) -> str | None:
    """Say what became of tensors that could not be made again as planned; None where all could."""
    missing, refused = sorted(stats.unmet), sorted(stats.refused)
    if not missing and not refused:
        return None
    parts = []
    if missing:
        parts.append(f"{len(missing)} are not saved, the first in {missing[0][0] or 'the model'}")
    if refused:
        parts.append(
            f"{len(refused)} cannot be made again and are kept, the first in {refused[0][0] or 'the model'}"
        )
    return f"of {num_asked} tensors that the plan makes again, {' and '.join(parts)}: more memory is used than planned"
