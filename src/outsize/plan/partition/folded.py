"""A chain folded over its ranks: each has a stage on the way in and one on the way out, so that skips stay at home.

rank 0   [encoder 0 ]---. .---[decoder 0 ]        a V: encoder and decoder of one level on one rank;
rank 1      [encoder 1 ]-. .-[decoder 1 ]         between ranks goes only what goes down and up
rank 2           [   the bottom   ]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from outsize.errors import PlanError, explain
from outsize.plan.partition.chain import Chain
from outsize.plan.partition.stages import (
    Partition,
    Stage,
    Terms,
    on_the_way,
    reasons,
    refuse_terms,
)
from outsize.units import format_bytes, format_count

__all__ = ["fold_chain"]

# Pairs of cuts are tried, so positions are thinned out, evenly by time: to a few, which tell how long it takes at most,
# then to more. The best cuts are then moved layer by layer.
_FEW_POSITIONS, _MOST_POSITIONS = 8, 24
Cuts = tuple[
    tuple[int, int], ...
]  # for each rank the layers that it and those before it have: the first a, from b on


def fold_chain(chain: Chain, terms: Terms) -> Partition:
    """Return the fold with the least time of a step that fits; the best of all where the chain is short."""
    num_stages = 2 * terms.num_ranks - 1
    refuse_terms(chain, terms, num_stages=num_stages)
    few = _best(chain, terms, chain.places(max(_FEW_POSITIONS, num_stages)), math.inf)
    most_s = math.inf if few is None else _step_s(chain, terms, few)
    cuts = _best(chain, terms, chain.places(max(_MOST_POSITIONS, 2 * num_stages)), most_s) or few
    if cuts is None:
        found = f"{format_count(len(chain), 'layer')} and {format_bytes(terms.room_bytes)} each"
        need = "a part of the encoder, one of the decoder and their memory on each rank"
        remedy = "take a plain cut, or more memory"
        raise PlanError(explain(f"no fold over {terms.num_ranks} ranks fits", found, need, remedy))
    cuts = _moved(chain, terms, cuts)
    stages = _stages(chain, terms, cuts)
    assert stages is not None
    whole_s = chain.forward_s(0, len(chain)) + chain.backward_s(0, len(chain))
    bound_s = _step_s(chain, terms, cuts)
    return Partition(stages, terms, bound_s, whole_s, folded=True, why=reasons(stages, chain, terms))


def _best(chain: Chain, terms: Terms, positions: Sequence[int], most_s: float) -> Cuts | None:
    """Take ranks from the outside in: what is left is always one run of layers from a to before b.

    What takes longer than `most_s`, or leaves more to the ranks that follow, is passed over.
    """

    def busy_s(first: int, end: int) -> float:
        return terms.num_micro * (chain.forward_s(first, end) + chain.backward_s(first, end))

    limit_s = most_s * (1 + 1e-9)
    reached: dict[tuple[int, int], tuple[float, Cuts]] = {(0, len(chain)): (0.0, ())}
    for rank in range(terms.num_ranks - 1):
        found: dict[tuple[int, int], tuple[float, Cuts]] = {}
        for (left, right), (cost_s, cuts) in reached.items():
            for a in (each for each in positions if left < each < right):
                one_s = busy_s(left, a)
                if one_s > limit_s:
                    break
                for b in (each for each in positions if a < each < right):
                    too_much = one_s + busy_s(b, right) > limit_s
                    if too_much or busy_s(a, b) > limit_s * (terms.num_ranks - 1 - rank):
                        continue
                    own_s = _rank_s(chain, terms, rank, (left, a), (b, right))
                    total_s = max(cost_s, own_s)
                    if total_s < found.get((a, b), (math.inf, ()))[0]:
                        found[a, b] = total_s, (*cuts, (a, b))
        reached = found
    last = terms.num_ranks - 1
    whole = [
        (max(cost_s, _rank_s(chain, terms, last, inner, None)), cuts)
        for inner, (cost_s, cuts) in reached.items()
    ]
    cost_s, cuts = min(whole, default=(math.inf, ()))
    return None if cost_s == math.inf else cuts


def _rank_s(
    chain: Chain, terms: Terms, rank: int, one: tuple[int, int], two: tuple[int, int] | None
) -> float:
    """Return how long a rank takes for its work, with the wait until its first and after its last micro-batch."""
    pair = _pair(chain, terms, rank, one, two)
    if pair is None:
        return math.inf
    slot = sum(stage.work_s for stage in pair)
    messages_s = sum(stage.messages_s for stage in pair)
    slot = max(slot, messages_s) if terms.copies_overlap else slot + 2 * messages_s
    return terms.num_micro * slot + chain.forward_s(0, one[0]) + chain.backward_s(0, one[0])


def _pair(
    chain: Chain, terms: Terms, rank: int, one: tuple[int, int], two: tuple[int, int] | None
) -> tuple[Stage, ...] | None:
    """Return the stages of a rank, both kept or both recomputed, whichever fits."""
    # one way through and back, and as many again to work on while the first are at the bottom
    num = on_the_way(replace(terms, num_ranks=3 * terms.num_ranks), rank)
    parts = [each for each in (one, two) if each is not None]
    state = [chain.state_bytes(*each) for each in parts]
    saved = [chain.saved_bytes(*each) for each in parts]
    inward = [chain.crossing[first - 1] if first else 0 for first, _ in parts]
    kept = [own + num * each for own, each in zip(state, saved, strict=True)]
    again = [own + each + num * came for own, each, came in zip(state, saved, inward, strict=True)]
    recomputes = sum(kept) > terms.room_bytes
    if recomputes and (not terms.may_recompute or sum(again) > terms.room_bytes):
        return None
    found = []
    for number, (first, end) in enumerate(parts):
        forward_s, backward_s = chain.forward_s(first, end), chain.backward_s(first, end)
        backward_s += forward_s if recomputes else 0.0
        peak = again[number] if recomputes else kept[number]
        messages_s = sum(terms.message_s(each) for each in _between_ranks(chain, parts, number))
        found.append(Stage(rank, first, end, forward_s, backward_s, peak, recomputes, messages_s))
    return tuple(found)


def _between_ranks(chain: Chain, parts: Sequence[tuple[int, int]], number: int) -> tuple[int, int]:
    """Return what comes into a part and what leaves it, less what goes from one part of the rank to the other."""
    first, end = parts[number]
    inward, outward = chain.crossing[first - 1] if first else 0, chain.crossing[end - 1]
    if len(parts) == 1:
        return inward, outward
    (one, one_end), (two, two_end) = parts
    home = sum(
        each.num_bytes
        for each in chain.skips
        if one <= each.made < one_end and any(two <= layer < two_end for layer in each.read)
        and not any(one_end <= layer < two for layer in each.read)
    )  # fmt: skip
    return (inward, outward - home) if number == 0 else (inward - home, outward)


def _stages(chain: Chain, terms: Terms, cuts: Cuts) -> tuple[Stage, ...] | None:
    down: list[Stage] = []
    up: list[Stage] = []
    left, right = 0, len(chain)
    for rank, (a, b) in enumerate(cuts):
        pair = _pair(chain, terms, rank, (left, a), (b, right))
        if pair is None:
            return None
        down.append(pair[0])
        up.append(pair[1])
        left, right = a, b
    bottom = _pair(chain, terms, terms.num_ranks - 1, (left, right), None)
    return None if bottom is None else (*down, *bottom, *reversed(up))


def _step_s(chain: Chain, terms: Terms, cuts: Cuts) -> float:
    left, right = 0, len(chain)
    found = chain.forward_s(0, right) + chain.backward_s(0, right)  # one micro-batch goes through all of it
    for rank, (a, b) in enumerate(cuts):
        found = max(found, _rank_s(chain, terms, rank, (left, a), (b, right)))
        left, right = a, b
    return max(found, _rank_s(chain, terms, terms.num_ranks - 1, (left, right), None))


def _moved(chain: Chain, terms: Terms, cuts: Cuts) -> Cuts:
    """Move one cut by one layer for as long as that gains."""
    best_s = _step_s(chain, terms, cuts)
    gains = True
    while gains:
        gains = False
        for rank in range(len(cuts)):
            for step in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                a, b = cuts[rank][0] + step[0], cuts[rank][1] + step[1]
                tried = (*cuts[:rank], (a, b), *cuts[rank + 1 :])
                flat = [0, *(each[0] for each in tried), *(each[1] for each in reversed(tried)), len(chain)]
                if any(one >= other for one, other in pairwise(flat)):
                    continue
                tried_s = _step_s(chain, terms, tried)
                if tried_s < best_s * (1 - 1e-12):
                    cuts, best_s, gains = tried, tried_s, True
    return cuts
