"""Runs forward so that what a plan names is recomputed or moved, and says where the plan was not met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from outsize.plan.plan import Recompute, Swap
from outsize.plan.step import Key
from outsize.strategies.blocks import Checks, checkpointed
from outsize.strategies.saved import SavedStats, SavedTensors
from outsize.strategies.swap import Meter, Shuttle

Tell = Callable[[str], object]


class ForwardSaving:
    """What one forward pass runs in; the first one tells what the plan knew and the model did not do.

    The model carries hooks no longer than a forward, so that others may copy and run it in between.
    """

    def __init__(self, model: nn.Module, recompute: Recompute, swap: Swap | None, tell: Tell) -> None:
        self._model, self._recompute, self._swap, self._tell = model, recompute, swap, tell
        self._has_warned = False
        self._checks: dict[str, Checks] = {}
        self._saved: SavedTensors | None = None
        if recompute.saved or swap is not None:
            saved, costly = frozenset(recompute.saved), frozenset(recompute.costly)
            self._saved = SavedTensors(
                model, saved, swap, costly=costly, waits=waits_of(recompute), tell=tell
            )

    @property
    def shuttle(self) -> Shuttle | None:
        """What moves tensors; None: nothing is moved."""
        return None if self._saved is None else self._saved.shuttle

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run one forward inside this."""
        with checkpointed(self._model, self._recompute.blocks, self._tell, self._checks):
            if self._saved is None:
                yield
                return
            with self._saved, self._saved.forward():
                yield
        if not self._has_warned and self._saved.stats is not None and self._is_whole():
            self._has_warned = True
            for text in unmet_by(self._saved, self._recompute, self._swap):
                self._tell(text)

    def _is_whole(self) -> bool:
        """Whether all of the model is trained, as it was planned for: what is frozen saves less, and needs less."""
        return all(each.requires_grad for each in self._model.parameters())


def saving(
    model: nn.Module, recompute: Recompute | None, swap: Swap | None, tell: Tell, meter: Meter | None = None
) -> ForwardSaving:
    """Return what one forward pass runs in."""
    found = ForwardSaving(model, recompute or Recompute(), swap, tell)
    if meter is not None and found.shuttle is not None:
        meter.watch(found.shuttle)
    return found


def waits_of(recompute: Recompute) -> dict[Key, int]:
    """Return how long before their turn tensors may be made to stay, by key; nothing where the plan does not say."""
    return dict(zip(recompute.saved, recompute.waits, strict=True)) if recompute.waits else {}


def unmet_by(saved: SavedTensors, recompute: Recompute, swap: Swap | None) -> list[str]:
    """Say what the latest forward could not do as planned."""
    found = [None if saved.stats is None else unmet(saved.stats, len(recompute.saved))]
    if swap is not None and saved.shuttle is not None and saved.shuttle.num_met is not None:
        found.append(unmoved(saved.shuttle.num_met, len(swap.moved)))
    return [text for text in found if text is not None]


def unmoved(num_met: int, num_asked: int) -> str | None:
    """Say how many tensors could not be moved as planned; None where all were."""
    if num_met >= num_asked:
        return None
    missing = (
        f"of {num_asked} tensors that the plan moves to host memory, {num_asked - num_met} are not saved"
    )
    return f"{missing}: more memory is used than planned"


def unmet(stats: SavedStats, num_asked: int) -> str | None:
    """Say what became of tensors that could not be recomputed as planned; None where all could."""
    missing, refused = sorted(stats.unmet), sorted(stats.refused)
    if not missing and not refused:
        return None
    parts = []
    if missing:
        parts.append(f"{len(missing)} are not saved, the first in {missing[0][0] or 'the model'}")
    if refused:
        parts.append(
            f"{len(refused)} cannot be recomputed and are kept, the first in {refused[0][0] or 'the model'}"
        )
    return f"of {num_asked} tensors that the plan recomputes, {' and '.join(parts)}: more memory is used than planned"
