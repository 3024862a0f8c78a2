"""Chooses which blocks are run again together with what else is made again and moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from outsize.plan.blocks import Blocks
from outsize.plan.cost import StepCost
from outsize.plan.mix import Mix, mix
from outsize.plan.recompute import OpSeconds, Recipe
from outsize.plan.timeline import Link

# sets of blocks that are tried: fewer in long steps, so that it stays a matter of seconds
_MOST_TRIALS, _MOST_WORK = 80, 5_000_000

BlocksOf = Callable[[Sequence[str]], Blocks]


def best_mix(
    cost: StepCost,
    recipes: Sequence[Recipe],
    op_s: OpSeconds,
    link: Link | None,
    budget_bytes: float,
    sets: Sequence[Blocks],
    blocks_of: BlocksOf,
) -> Mix:
    """Return the fastest way found that keeps the budget, with any of the blocks in `sets` or none.

    Begins with the best of the sets and of no blocks at all, and tries each block the other way round. Where nothing
    keeps the budget, that with the lowest peak is returned.
    """

    def tried(blocks: Blocks | None, *, quick: bool = True) -> Mix:
        return mix(cost, recipes, op_s, link, budget_bytes, blocks, quick=quick)

    def rank(found: Mix) -> tuple[float, float]:
        return max(0.0, found.peak_bytes - budget_bytes), found.extra_s

    best = min(map(tried, (None, *sets)), key=rank)
    paths = sorted({path for each in sets for path in each.paths})
    known: set[tuple[str, ...]] = {each.paths for each in sets}
    most = len(known) + min(_MOST_TRIALS, _MOST_WORK // max(1, len(cost.facts.ops) * len(cost.facts.saved)))
    before: Mix | None = None
    while before is not best:
        before = best
        for path in paths:
            for chosen in _flipped(best.blocks.paths if best.blocks else (), path, paths):
                if not chosen or chosen in known or len(known) >= most:
                    continue
                known.add(chosen)
                blocks = blocks_of(chosen)
                if blocks.paths and (0.0, blocks.cost_s) < rank(best):
                    best = min(best, tried(blocks), key=rank)
    return min(best, tried(best.blocks, quick=False), tried(None, quick=False), key=rank)


def _flipped(chosen: Sequence[str], path: str, paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield a set of blocks without one of them, and with what lies in it instead; or with another, and none in it."""
    if path in chosen:
        others = [each for each in chosen if each != path]
        yield tuple(others)
        inside = [each for each in paths if each.startswith(f"{path}.")]
        yield tuple(sorted([*others, *inside]))
    else:
        others = [each for each in chosen if not f"{each}.".startswith(f"{path}.")]
        yield tuple(sorted([*(each for each in others if not path.startswith(f"{each}.")), path]))
