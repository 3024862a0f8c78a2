"""The largest moment of a step: how little memory a plan needs that recomputes and moves, and what it holds then.

    python benchmarks/floors.py [--networks convnext vit ...] [--top 4] [--out floors.json]

Each network of any_networks.py is followed on shapes, as a GPU would run it. Everything that may wait in host memory
waits there from its last use of forward to its first of backward: what is held then at the fullest operation is the
floor, whatever the budget. The second row of a network is that of its step with joins and enlargements made by slices,
where it has any that only convolutions read. Nothing is computed, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from any_networks import NETWORKS, Network

from outsize.errors import TraceError
from outsize.plan.cost import Changed, StepCost
from outsize.plan.memory import find_points
from outsize.plan.step import StepFacts, Storage
from outsize.planning.own_step import own_step, traced
from outsize.strategies.kernels import made_by_slices

_GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--top", type=int, default=4, help="tensors to name of what is held")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    rows = []
    print("| network | all memory | floor | of all | operation | held there, beyond weights and optimizer |")
    print("|---|---|---|---|---|---|")
    for network in NETWORKS:
        if any(part.lower() in network.name.lower() for part in options.networks):
            for row in rows_of(network, options.top):
                rows.append(row)
                print(as_line(row), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


def rows_of(network: Network, top: int) -> Iterator[dict[str, Any]]:
    """Yield what a network's step takes, its floor, and what that consists of; and the same with slices."""
    model, example = network.make().train(), network.example(network.shape, torch.device("cpu"))
    own = own_step(model, example, network.loss, torch.optim.AdamW, True)
    step = replace(own, device=torch.device("cuda"))
    try:
        facts = traced(step)
    except TraceError as error:
        yield {"network": network.name, "failed": str(error)}
        return
    yield {"network": network.name, **floor_of(facts, top)}
    later = made_by_slices(model, facts)
    if later:
        yield {"network": f"{network.name}, by slices", **floor_of(traced(step, later=later), top)}


def floor_of(facts: StepFacts, top: int) -> dict[str, Any]:
    """Return peak and floor of a step, the operation of the floor, and the largest that is held there."""
    cost = StepCost(facts)
    changed = everything_away(cost)
    live = cost.live_bytes(changed)
    fullest = max(range(len(live)), key=live.__getitem__)
    op = facts.ops[fullest]
    layer = ".".join(filter(None, (op.layer[0] or op.module,)))
    there = sorted(held_at(cost, changed, fullest), key=lambda each: -each.size_bytes)
    named = [f"{each.size_bytes / _GIB:.2f} {name_of(facts, each)}" for each in there[:top]]
    named += [f"{sum(each.size_bytes for each in there[top:]) / _GIB:.2f} in {len(there[top:])} others"]
    return {
        "peak_bytes": cost.peak_bytes(),
        "floor_bytes": live[fullest],
        "lasting_bytes": cost.lasting_bytes,
        "op": f"{op.kind}{' (backward)' if op.backward else ''} of {layer or 'the model'}",
        "held": named,
    }


def everything_away(cost: StepCost) -> Changed:
    """Return the lives of storages where all that may wait in host memory does so for as long as it can."""
    movable = find_points(cost, least_bytes=1).movable
    return Changed(twice={each.storage: (each.free, each.need) for each in movable if each.free < each.need})


def held_at(cost: StepCost, changed: Changed, index: int) -> Iterator[Storage]:
    """Yield what is there during an operation and was not before the step."""
    for storage, start, end in cost.spans(changed):
        if storage.born >= 0 and start <= index < end:
            yield storage


def name_of(facts: StepFacts, storage: Storage) -> str:
    """Say what made a storage."""
    op = facts.ops[storage.born]
    return f"{op.kind}{' back' if op.backward else ''} {op.layer[0] or op.module}".strip()


def as_line(row: dict[str, Any]) -> str:
    """Lay out a row of the table."""
    if "failed" in row:
        return f"| {row['network']} | {row['failed'][:150]} | | | | |"
    peak, floor, lasting = (row[f"{name}_bytes"] for name in ("peak", "floor", "lasting"))
    share = (floor - lasting) / (peak - lasting)
    cells = (f"{peak / _GIB:.2f} GiB", f"{floor / _GIB:.2f} GiB", f"{share:.0%}", row["op"])
    return f"| {row['network']} | {' | '.join(cells)} | {'; '.join(row['held'])} |"


if __name__ == "__main__":
    main()
