"""What `verify` does about training: one small step of the run's model as planned, against the plain one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from outsize.plan.plan import Plan, Recompute
from outsize.plan.step import BLOCK_BYTES, Key
from outsize.train.prove.proofs import StepProof, SwapProof

if TYPE_CHECKING:
    import torch
    from torch import nn

    from outsize.card import Card
    from outsize.data.batch import Batch
    from outsize.measure.apart import Outcome
    from outsize.strategies.compose import LossTerms, Terms
    from outsize.strategies.saved import SavedStats
    from outsize.strategies.swap import Counters

TOLERANCE = 1e-10  # of each tensor's largest value, in float64
_SEED = 20240229
_SIDE_PX = 64  # of a window that is not cut


def changes_numbers(plan: Plan) -> bool:
    """Whether a plan has what `prove_step` compares with the plain step: not how kernels are called, nor which."""
    settings = (plan.recompute, plan.swap, plan.tiles, plan.micro_batches, plan.offload, plan.compile)
    return any(each is not None for each in settings)


def prove_step(
    plan: Plan, model: nn.Module, card: Card, *, loss: str, stride_px: int, device: torch.device
) -> StepProof:
    """Run one step on random data both ways in double precision, on copies of the model.

    The window is small, for what differs would differ there, too: tensors are named by module and not by size, and
    tiles are cut so that one of them touches no border of the window.
    """
    import torch

    from outsize.measure.apart import apart
    from outsize.tiles.grid import cover

    small, side_px = shrunk(plan, stride_px)
    trial = make_trial(plan, model, card, loss=loss, side_px=side_px, device=device)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        met = trial.met(plan)
        found = apart(trial.run(_with_room(small, met))[0], trial.run(small.plain())[0])
    recompute = plan.recompute or Recompute()
    tiles = cover(side_px, side_px, small.tiles.core_px, small.tiles.halo) if small.tiles else ()
    return StepProof(
        found,
        exact=plan.exact,
        tolerance=TOLERANCE,
        passed=found.largest <= TOLERANCE,
        num_tiles=len(tiles),
        num_micro_batches=min(plan.micro_batches or 1, len(trial.batch.images)),
        num_blocks=len(recompute.blocks),
        num_keys=len(recompute.saved),
        num_moved_blocks=len(plan.offload.blocks) if plan.offload is not None else 0,
        num_compiled=len(plan.compile.paths) if plan.compile is not None else 0,
        unmet=_named(met.unmet),
        refused=_named(met.refused),
    )


def prove_swap(
    plan: Plan, model: nn.Module, card: Card, *, loss: str, stride_px: int, device: torch.device
) -> SwapProof:
    """Run one small step as planned and once more with nothing moved to host memory: the same to the bit.

    Kernels of a GPU may add up in another order each time. Where two steps that move nothing differ, a third and a
    fourth are run, and one that moves must be as near to one of them as they are to each other.
    """
    import torch

    from outsize.measure.apart import apart

    assert plan.swap is not None
    small, side_px = shrunk(plan, stride_px)
    trial = make_trial(plan, model, card, loss=loss, side_px=side_px, device=device)
    resident = replace(small, swap=None)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), _repeatable(device):
        swapped, counted = trial.run(_with_room(small, trial.met(plan)))
        kept = [trial.run(resident)[0] for _ in range(2)]
        if apart(*kept).largest > 0:
            kept += [trial.run(resident)[0] for _ in range(2)]
    tolerance = max(apart(one, other).largest for one, other in combinations(kept, 2))
    found = min((apart(swapped, each) for each in kept), key=lambda each: each.largest)
    assert counted is not None
    return SwapProof(
        found,
        tolerance=tolerance,
        passed=found.largest <= tolerance,
        num_keys=len(plan.swap.moved),
        num_moved=counted.num_out // counted.num_forwards,
    )


@dataclass(frozen=True)
class StepTrial:
    """One small step of a model, to be run by several plans, each on a copy."""

    model: nn.Module
    device: torch.device
    loss_terms: LossTerms
    batch: Batch
    draws_anew: bool
    dtype: torch.dtype

    def run(self, plan: Plan) -> tuple[Outcome, Counters | None]:
        """Return what a step leaves and what it moved; it may not tell of sizes, for they are not the plan's."""
        import torch

        from outsize.measure.apart import outcome_of
        from outsize.strategies.compose import compose
        from outsize.strategies.offload import in_full
        from outsize.strategies.swap import Meter

        twin, meter = self._twin(), Meter()
        step = compose(twin, self.loss_terms, plan, bf16=False, tell=lambda _: None, meter=meter)
        torch.manual_seed(_SEED)
        found = outcome_of(twin, lambda: step(self.batch, last=True))
        return replace(found, gradients=in_full(found.gradients)), meter.read()

    def run_often(self, plan: Plan, num: int, tell: Callable[[str], object]) -> Outcome:
        """Return what the last of some steps leaves: a recorded step is replayed by then, and no weight has changed."""
        import torch

        from outsize.measure.apart import outcome_of
        from outsize.strategies.compose import compose
        from outsize.strategies.cudagraph import Recordings

        twin, recordings = self._twin(), Recordings()
        step = compose(twin, self.loss_terms, plan, bf16=False, tell=tell, recordings=recordings)

        def run() -> Terms:
            twin.zero_grad(set_to_none=True)
            torch.manual_seed(_SEED)
            return step(self.batch, last=True)

        try:
            for _ in range(num - 1):
                run()
            return outcome_of(twin, run)
        finally:
            recordings.let_go()

    def met(self, plan: Plan) -> SavedStats:
        """Count what one forward saves, and which of the tensors to be recomputed it does not, or has to keep."""
        from outsize.strategies.blocks import checkpointed
        from outsize.strategies.compiled import compiled
        from outsize.strategies.saved import SavedTensors

        model, recompute = self._twin(), plan.recompute or Recompute()
        saved = SavedTensors(model, frozenset(recompute.saved), costly=frozenset(recompute.costly))

        @contextmanager
        def recomputing() -> Iterator[None]:
            with checkpointed(model, recompute.blocks), saved, saved.forward():
                yield

        forward = compiled(model, plan.compile, recomputing) if plan.compile is not None else recomputing
        with forward():
            self.loss_terms(model, self.batch)
        assert saved.stats is not None
        return saved.stats

    def _twin(self) -> nn.Module:
        return _twin(self.model, self.device, self.dtype, draws_anew=self.draws_anew)


def make_trial(
    plan: Plan,
    model: nn.Module,
    card: Card,
    *,
    loss: str,
    side_px: int,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> StepTrial:
    """Return the small step that a plan is to be tried on; in double precision, unless another is asked for."""
    import torch

    from outsize.tasks import task_of
    from outsize.train.made_up import make_up_batch

    task, shape = task_of(card.task), (min(plan.batch, 2), len(card.bands), side_px, side_px)
    # pixels as the training's are spread, some of them not valid, and some labels missing
    how: dict[str, Any] = {"statistics": card.statistics, "missing": 0.1, "seed": _SEED}
    batch = make_up_batch(model, task, loss, shape, len(card.classes), **how).to(device)
    loss_terms = task.make_loss_terms(loss, card.statistics, None)
    draws_anew = any(each is not None for each in (plan.tiles, plan.micro_batches, plan.compile))
    return StepTrial(model, device, loss_terms, batch, draws_anew, dtype or torch.float64)


def _with_room(plan: Plan, met: SavedStats) -> Plan:
    """Give a shrunk plan the host memory that its small step can fill, and let it move tensors of any size."""
    if plan.swap is None:
        return plan
    moved = tuple(replace(each, size_bytes=0) for each in plan.swap.moved)
    pinned_bytes = met.kept_bytes + BLOCK_BYTES * met.num_kept
    return replace(plan, swap=replace(plan.swap, moved=moved, pinned_bytes=pinned_bytes))


@contextmanager
def _repeatable(device: torch.device) -> Iterator[None]:
    """Choose kernels that do the same each time, where a GPU has them."""
    import torch

    if device.type != "cuda":
        yield
        return
    before, warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


def shrunk(plan: Plan, stride_px: int) -> tuple[Plan, int]:
    """Shrink a plan to a window of few pixels, and return that window's side.

    +------+------+------+
    |      |      |      |     A core as large as the halo and a stride more: three of them a side are the
    +------+------+------+     fewest of which the middle one reads nothing from beyond the border.
    |      | core |      |
    +------+------+------+
    |      |      |      |
    +------+------+------+
    """
    plan = replace(
        plan, graph=False, paged=False
    )  # of so few pixels there is room for all, and one step to run
    if plan.tiles is None:
        return plan, -(-_SIDE_PX // stride_px) * stride_px
    tiles = plan.tiles
    # a plan's halo is a multiple of the stride
    core_px = max(*tiles.halo_before_px, *tiles.halo_after_px) + tiles.stride_px
    return replace(plan, tiles=replace(tiles, core_px=core_px)), 3 * core_px


def _twin(model: nn.Module, device: torch.device, dtype: torch.dtype, *, draws_anew: bool) -> nn.Module:
    """Return a copy in a precision that trains, and gets its input in that precision, too.

    Parts and compiled blocks draw random numbers of their own, so that with dropout they differ from the plain step
    as any two steps do: there all but the norms, which a cut may harm, is set to evaluation.
    """
    import copy

    import torch

    from outsize.measure.across import OVER_PIXELS, norms_over

    twin = copy.deepcopy(model).to(device=device, dtype=dtype).train(not draws_anew)
    for _, norm in norms_over(twin, OVER_PIXELS):
        norm.train()

    def widen(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(each.to(dtype) if isinstance(each, torch.Tensor) else each for each in given)

    twin.register_forward_pre_hook(widen)
    return twin


def _named(keys: Collection[Key]) -> tuple[str, ...]:
    return tuple(
        f"{path or 'the whole model'}, call {call}, tensor {num}" for path, call, num in sorted(keys)
    )
