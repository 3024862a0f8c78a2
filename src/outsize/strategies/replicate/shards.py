"""Keeps the optimizer's state in shards: each rank updates the weights whose state it keeps, and sends them to all.

backward   all gradients are summed, on every rank
step       rank 0 updates a b c        rank 1 updates d e        each has let go of the other gradients before
after      rank 0 sends a b c -------> rank 1, which sends d e   weights are the same on all, to the bit

An optimizer passes over weights without a gradient and makes no state for them, so its own hooks are all it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from outsize.plan.sharing import keepers
from outsize.ranks import World

_SENT_BYTES = 25 * 2**20  # at once


def share_state(optimizer: torch.optim.Optimizer, world: World) -> Callable[[Tensor], bool]:
    """Have each rank keep the state of some weights alone; return what says whether this one keeps a weight's.

    All ranks call this, and step, together; state that is loaded must be of the weights that are kept.
    """
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    ranks = keepers([each.numel() * each.element_size() for each in weights], world.size)
    kept = {each for each, rank in zip(weights, ranks, strict=True) if rank == world.rank}

    def let_go(*_: Any) -> None:
        for each in weights:
            if each not in kept:
                each.grad = None

    def send(*_: Any) -> None:
        with torch.no_grad():
            for rank, held in _messages(weights, ranks):
                _send(held, rank, world)

    optimizer.register_step_pre_hook(let_go)
    optimizer.register_step_post_hook(send)
    return kept.__contains__


def _messages(weights: list[nn.Parameter], ranks: list[int]) -> Iterator[tuple[int, list[nn.Parameter]]]:
    """Yield what goes at once: some weights that one rank keeps, of one kind of number."""
    pairs = zip(ranks, weights, strict=True)
    for (rank, _), group in groupby(pairs, lambda pair: (pair[0], pair[1].dtype)):
        held: list[nn.Parameter] = []
        num_bytes = 0
        for _, each in group:
            own = each.numel() * each.element_size()
            if held and num_bytes + own > _SENT_BYTES:
                yield rank, held
                held, num_bytes = [], 0
            held.append(each)
            num_bytes += own
        yield rank, held


def _send(held: list[nn.Parameter], rank: int, world: World) -> None:
    is_mine = rank == world.rank
    first = held[0]
    row = (
        torch.cat([each.reshape(-1) for each in held])
        if is_mine
        else first.new_empty(sum(each.numel() for each in held))
    )
    dist.broadcast(row, world.rank_of_all(rank), world.group())
    if is_mine:
        return
    for each, part in zip(held, row.split([each.numel() for each in held]), strict=True):
        each.copy_(part.view(each.shape))
