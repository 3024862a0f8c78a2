"""What `verify` does about training: one small step of the run's model as planned, against the plain one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from outsize.errors import RunError, explain
from outsize.plan.plan import Plan, Recompute, plan_from_dict
from outsize.plan.step import Key
from outsize.runs import RunFolder, read_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from outsize.data.batch import Batch
    from outsize.measure.apart import Outcome
    from outsize.strategies.compose import LossTerms
    from outsize.train.checkpoint import Card

TOLERANCE = 1e-10  # of each tensor's largest value, in float64
_SEED = 20240229
_SIDE_PX = 64  # of a window that is not cut


@dataclass(frozen=True)
class StepProof:
    """A step as planned against the plain one: largest relative differences, and what was met of the plan."""

    loss: float
    gradients: float
    buffers: float
    most: str  # the tensor that differs most
    exact: bool  # what the plan says
    tolerance: float
    passed: bool
    num_tiles: int
    num_micro_batches: int
    num_blocks: int
    num_keys: int  # saved tensors that the plan wants made again
    unmet: tuple[str, ...]  # those of them that the step did not save
    refused: tuple[str, ...]  # those that it saved and had to keep

    @property
    def largest(self) -> float:
        """The largest difference."""
        return max(self.loss, self.gradients, self.buffers)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def text(self) -> str:
        """Return one line for a person."""
        cuts = ((self.num_tiles, "tiles"), (self.num_micro_batches, "micro-batches"))
        parts = [f"{num} {name}" for num, name in cuts if num > 1]
        if self.num_blocks:
            parts.append(f"{self.num_blocks} blocks recomputed")
        if self.num_keys:
            num_made = self.num_keys - len(self.unmet) - len(self.refused)
            parts.append(f"{num_made} of {self.num_keys} planned tensors recomputed")
        verdict = "yes" if self.passed else "NO" if self.exact else "no, the plan is approximate"
        return (
            f"step as planned = plain, float64 ({', '.join(parts)}): loss differs by {self.loss:.2e}, gradients "
            f"by {self.gradients:.2e}, buffers by {self.buffers:.2e} of the largest (tolerance "
            f"{self.tolerance:.0e}): {verdict}"
        )


def planned_otherwise(run: RunFolder) -> Plan | None:
    """Return the plan that the run was trained by; None where it was the plain step, or is not known."""
    if not run.plan.exists():
        return None
    try:
        plan = plan_from_dict(read_json(run.plan, "plan")["train"])
    except (KeyError, TypeError, ValueError) as error:
        found, need = f"{type(error).__name__}: {error}", "the plan that `outsize plan` writes"
        remedy = "run `outsize plan` again with the job of the run"
        raise RunError(explain(f"{run.plan} cannot be understood", found, need, remedy)) from error
    settings = (plan.recompute, plan.tiles, plan.micro_batches)
    return plan if any(each is not None for each in settings) else None


def prove_step(
    plan: Plan, model: nn.Module, card: Card, *, loss: str, stride_px: int, device: torch.device
) -> StepProof:
    """Run one step on random data both ways in double precision, on copies of the model.

    The window is small, for what differs would differ there, too: tensors are named by module and not by size, and
    tiles are cut so that one of them touches no border of the window.
    """
    import torch

    from outsize.measure.apart import apart, outcome_of
    from outsize.strategies.compose import compose
    from outsize.tasks import TASKS
    from outsize.tiles.grid import cover

    small, side_px = _small(plan, stride_px)
    batch = _random_batch(card, loss, num_samples=min(plan.batch, 2), side_px=side_px).to(device)
    loss_terms = TASKS[card.task].make_loss_terms(loss, card.statistics, None)
    draws_anew = any(each is not None for each in (plan.tiles, plan.micro_batches, plan.compile))

    def run(settings: Plan) -> Outcome:
        twin = _twin(model, device, draws_anew=draws_anew)
        step = compose(twin, loss_terms, settings, bf16=False)
        torch.manual_seed(_SEED)
        return outcome_of(twin, lambda: step(batch, last=True))

    plain = replace(small, tiles=None, micro_batches=None, recompute=None, compile=None)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        found = apart(run(small), run(plain))
        twin = _twin(model, device, draws_anew=draws_anew)
        unmet, refused = _missed(twin, loss_terms, batch, plan)
    recompute = plan.recompute or Recompute()
    tiles = cover(side_px, side_px, small.tiles.core_px, small.tiles.halo) if small.tiles else ()
    return StepProof(
        **asdict(found),
        exact=plan.exact,
        tolerance=TOLERANCE,
        passed=found.largest <= TOLERANCE,
        num_tiles=len(tiles),
        num_micro_batches=min(plan.micro_batches or 1, len(batch.images)),
        num_blocks=len(recompute.blocks),
        num_keys=len(recompute.saved),
        unmet=unmet,
        refused=refused,
    )


def _small(plan: Plan, stride_px: int) -> tuple[Plan, int]:
    """Shrink a plan to a window of few pixels, and return that window's side.

    +------+------+------+
    |      |      |      |     A core as large as the halo and a stride more: three of them a side are the
    +------+------+------+     fewest of which the middle one reads nothing from beyond the border.
    |      | core |      |
    +------+------+------+
    |      |      |      |
    +------+------+------+
    """
    if plan.tiles is None:
        return plan, -(-_SIDE_PX // stride_px) * stride_px
    tiles = plan.tiles
    # a plan's halo is a multiple of the stride
    core_px = max(*tiles.halo_before_px, *tiles.halo_after_px) + tiles.stride_px
    return replace(plan, tiles=replace(tiles, core_px=core_px)), 3 * core_px


def _random_batch(card: Card, loss: str, *, num_samples: int, side_px: int) -> Batch:
    """Draw pixels as the training's are spread, some of them not valid, and labels, some of them missing."""
    import torch

    from outsize.data.batch import Batch
    from outsize.data.sample import IGNORE
    from outsize.tasks import TASKS

    generator = torch.Generator().manual_seed(_SEED)
    shape = (num_samples, side_px, side_px)
    mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (card.statistics.mean, card.statistics.std))
    noise = torch.randn(num_samples, len(card.bands), side_px, side_px, generator=generator)
    labels = torch.randint(len(card.classes), shape, generator=generator, dtype=torch.uint8)
    labels[torch.rand(shape, generator=generator) < 0.1] = IGNORE
    valid = torch.rand(shape, generator=generator) > 0.1
    return Batch(noise * std + mean, valid, labels, TASKS[card.task].count_terms(loss, labels, None))


def _twin(model: nn.Module, device: torch.device, *, draws_anew: bool) -> nn.Module:
    """Return a copy in double precision that trains, and gets its input in double precision, too.

    Parts and compiled blocks draw random numbers of their own, so that with dropout they differ from the plain step
    as any two steps do: there all but the norms, which a cut may harm, is set to evaluation.
    """
    import copy

    from outsize.measure.across import OVER_PIXELS, norms_over

    twin = copy.deepcopy(model).to(device).double().train(not draws_anew)
    for _, norm in norms_over(twin, OVER_PIXELS):
        norm.train()

    def widen(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(each.double() for each in given)

    twin.register_forward_pre_hook(widen)
    return twin


def _missed(
    model: nn.Module, loss_terms: LossTerms, batch: Batch, plan: Plan
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the tensors to be recomputed that one forward does not save, and those that it has to keep."""
    from outsize.strategies.blocks import checkpointed
    from outsize.strategies.compiled import compiled
    from outsize.strategies.saved import SavedTensors

    recompute = plan.recompute or Recompute()
    saved = SavedTensors(model, frozenset(recompute.saved))

    @contextmanager
    def recomputing() -> Iterator[None]:
        with checkpointed(model, recompute.blocks), saved, saved.forward():
            yield

    forward = compiled(model, plan.compile, recomputing) if plan.compile is not None else recomputing
    with forward():
        loss_terms(model, batch)
    assert saved.stats is not None
    return _named(saved.stats.unmet), _named(saved.stats.refused)


def _named(keys: Collection[Key]) -> tuple[str, ...]:
    return tuple(
        f"{path or 'the whole model'}, call {call}, tensor {num}" for path, call, num in sorted(keys)
    )
