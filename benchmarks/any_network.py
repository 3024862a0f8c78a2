"""Networks that nobody tuned the memory engine for: every way to run their step, in turns of one run; or plans alone.

    python benchmarks/any_network.py [--networks convnext vit ...] [--turns 5] [--out result.json]
    python benchmarks/any_network.py --plan-only [--gpu h200] [--shares 0.7 0.5 0.33 0.25] [--out result.json]

On a GPU each network has a process of its own. Rows are plain, compile, compile with a budget of half, checkpoint
(timm's own where it has one, each block elsewhere), and `outsize.within` at shares of what the plain step takes beyond
weights and optimizer, with the process capped at the budget. Peaks are torch's allocator's; "device" is what the driver
saw go while a way had its turn, as nvidia-smi shows it.

With --plan-only nothing is computed and no GPU is needed: peak and time as planned for a named GPU, seconds of this
process that planning took, by phase (the step followed on shapes; again with its blocks run again; the search among
ways), and what the plan consists of. --captured plans for steps that are captured as one CUDA graph, in which calls of
the host cost nothing. --floor adds what a plan would cost at the very least (recompute_floor.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from any_networks import NETWORKS, Network
from recompute_floor import floor_s
from torch import nn
from torch.utils.checkpoint import checkpoint

import outsize
from outsize.bench.gauge import Turn, take_turn
from outsize.errors import OutsizeError, TraceError
from outsize.plan.cost import StepCost
from outsize.plan.machines import find_machine
from outsize.plan.plan import Fuse, Plan
from outsize.plan.search import Link
from outsize.plan.step import StepFacts
from outsize.plan.times import Clock
from outsize.plan.ways import choose_recompute
from outsize.plan.ways.blocks import list_blocks
from outsize.planning.own_step import own_step, traced
from outsize.strategies.compat import with_activation_budget
from outsize.strategies.kernels import made_by_slices

SHARES = (0.7, 0.5, 0.33, 0.25)
HOST_BYTES = 64 << 30  # of the named GPU's host
_POLL_S = 0.002


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--gpu", default="h200", help="with --plan-only")
    parser.add_argument("--captured", action="store_true", help="plan as if the host's calls cost nothing")
    parser.add_argument(
        "--floor", action="store_true", help="with --plan-only: the bound of a linear program"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--small", type=int, default=1, help="divides batches, to try the script")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = [
        each for each in NETWORKS if any(part.lower() in each.name.lower() for part in options.networks)
    ]
    if options.child is not None:
        (network,) = (each for each in NETWORKS if each.name == options.child)
        options.out.write_text(json.dumps(measured(network, options)))
        return
    rows: list[dict] = []
    for network in wanted:
        rows += planned(network, options) if options.plan_only else in_own_process(network, options)
        result = {"command": " ".join(sys.argv), "torch": torch.__version__, "rows": rows}
        if options.out:
            options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(table(rows, plan_only=options.plan_only))


# ---- plans alone


def planned(network: Network, options: argparse.Namespace) -> list[dict]:
    """Plan a network's step for a GPU that need not be here."""
    spec = find_machine(options.gpu)
    rates = replace(spec.rates, host_op_s=0.0) if options.captured else spec.rates
    clock = Clock(rates, tf32=rates.tf32_flops_per_s is not None, overlaps=True)
    begin_s = time.process_time()
    model, example = network.make().train(), network.example(shape_of(network, options), torch.device("cpu"))
    step = replace(
        own_step(model, example, network.loss, torch.optim.AdamW, True), device=torch.device("cuda")
    )
    made_s, begin_s = time.process_time() - begin_s, time.process_time()
    try:
        cost = StepCost(traced(step))
    except TraceError as error:
        row = {"network": network.name, "way": "plain", "failed": f"not followed on shapes: {error}"}
        print(json.dumps(row), flush=True)
        return [row]
    followed_s = time.process_time() - begin_s
    plain_s = clock.step_s(cost.facts.ops)
    rows = [row_of(network, "plain", cost.peak_bytes(), plain_s, followed_s, "", plain_s)]
    rows[0] |= {"made_s": round(made_s, 2), "num_ops": len(cost.facts.ops)}
    for share in options.shares:
        budget_bytes = cost.lasting_bytes + share * (cost.peak_bytes() - cost.lasting_bytes)
        row = planned_within(network, step, cost, clock, budget_bytes, followed_s)
        row["way"] = f"ours, {share:.0%}"
        if options.floor:
            least_s = floor_s(cost, clock, budget_bytes)
            row["floor"] = None if least_s is None else round(least_s / clock.step_s(cost.facts.ops), 3)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def planned_within(
    network: Network, step: Any, cost: StepCost, clock: Clock, budget_bytes: float, followed_s: float
) -> dict:
    """Plan a step within a budget, with the seconds of each phase."""
    plain_s, again_s = clock.step_s(cost.facts.ops), [0.0]

    def again(paths: tuple[str, ...] = (), later: tuple[str, ...] = ()) -> StepFacts:
        begin_s = time.process_time()
        try:
            return traced(step, paths, later=later)
        finally:
            again_s[0] += time.process_time() - begin_s

    begin_s = time.process_time()
    choose = partial(
        choose_recompute,
        limit_bytes=int(budget_bytes),
        budget_bytes=budget_bytes,
        link=Link.of(clock.rates),
        host_bytes=HOST_BYTES,
        **clock.settings(),
    )
    found = choose(cost.facts, blocks_of=again)
    later = () if isinstance(found, Plan) else made_by_slices(step.model, cost.facts)
    if later:  # where nothing else fits, as `within` does it
        found = choose(again(later=later), blocks_of=partial(again, later=later))
        found = replace(found, fuse=Fuse(later=later)) if isinstance(found, Plan) else found
    search_s = time.process_time() - begin_s - again_s[0]
    planning_s = followed_s + search_s + again_s[0]
    phases = {"followed_s": followed_s, "again_s": again_s[0], "search_s": search_s}
    rounded = {name: round(seconds, 1) for name, seconds in phases.items()}
    if isinstance(found, Plan):
        row = row_of(network, "", found.peak_bytes, found.step_s or 0.0, planning_s, parts_of(found), plain_s)
        return row | rounded | {"used": round(found.peak_bytes / budget_bytes, 3)}
    least = min(found, key=lambda way: way.peak_bytes)
    text = f"{least.peak_bytes / 2**30:.2f} GiB at least, by {least.name}"
    return {"network": network.name, "way": "", "failed": text, "planning_s": round(planning_s, 1)} | rounded


def row_of(
    network: Network, way: str, peak_bytes: int, step_s: float, planning_s: float, parts: str, plain_s: float
) -> dict:
    return {
        "network": network.name,
        "way": way,
        "gib": round(peak_bytes / 2**30, 2),
        "ms": round(1e3 * step_s, 1),
        "over_plain": round(step_s / plain_s - 1, 3),
        "planning_s": round(planning_s, 1),
        "parts": parts,
    }


def parts_of(plan: Plan) -> str:
    """Say what a plan consists of."""
    again, swap = plan.recompute, plan.swap
    parts = []
    if again is not None and again.blocks:
        parts.append(f"{len(again.blocks)} blocks ({', '.join(again.blocks[:2])} ...)")
    if again is not None and again.saved:
        parts.append(f"{len(again.saved)} tensors, {len(again.costly)} convolutions")
    if swap is not None:
        parts.append(f"{sum(each.size_bytes for each in swap.moved) / 2**30:.2f} GiB moved")
    if plan.fuse is not None and plan.fuse.later:
        parts.append(f"{len(plan.fuse.later)} joins by slices")
    return "; ".join(parts) or "nothing given up"


def shape_of(network: Network, options: argparse.Namespace) -> tuple[int, ...]:
    num, *rest = network.shape
    return (max(1, num // options.small), *rest)


# ---- on a GPU


@dataclass
class Entry:
    """One way to run a network's step, and what was seen of it."""

    name: str
    run: Callable[[], object] | None = None
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext
    cap_bytes: int | None = None
    setup_s: float = 0.0
    plan: Plan | None = None
    failed: str | None = None
    turns: list[Turn] = field(default_factory=list)
    device_bytes: list[int] = field(default_factory=list)


def in_own_process(network: Network, options: argparse.Namespace) -> list[dict]:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "rows.json"
        command = [sys.executable, __file__, "--child", network.name, "--out", str(out)]
        command += ["--turns", str(options.turns), "--small", str(options.small), "--shares"]
        command += [str(each) for each in options.shares]
        done = subprocess.run(command, check=False)
        if done.returncode:
            return [{"network": network.name, "way": "plain", "failed": f"exit code {done.returncode}"}]
        rows: list[dict] = json.loads(out.read_text())
    print(table(rows, plan_only=False), flush=True)
    return rows


def measured(network: Network, options: argparse.Namespace) -> list[dict]:
    """Let all ways have their turns, and return a row for each."""
    warnings.simplefilter("ignore")
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = network.make().to(device).train()
    example = network.example(shape_of(network, options), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step_of(forward: Callable[..., Any]) -> Callable[[], object]:
        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                value = network.loss(forward, example)  # type: ignore[arg-type]
            value.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    entries = [
        Entry("plain", step_of(model)),
        Entry("compile", step_of(torch.compile(model))),
        Entry("compile-0.5", step_of(torch.compile(model, backend=with_activation_budget("inductor", 0.5)))),
        Entry("checkpoint", step_of(model), partial(checkpointing, model, network, example)),
    ]
    for entry in entries:
        take(entry, device)
    weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    lasting_bytes = 3 * weights  # with AdamW's two moments
    plain = entries[0].turns[-1].peak_bytes if entries[0].turns else None
    for share in options.shares if plain else ():
        assert plain is not None
        budget_bytes = int(lasting_bytes + share * (plain - lasting_bytes))
        entries.append(ours(f"ours, {share:.0%}", budget_bytes, model, network, example, step_of(model)))
        take(entries[-1], device)
    for entry in entries:  # the first turn compiled, chose kernels and learnt
        entry.turns.clear()
        entry.device_bytes.clear()
    for number in range(options.turns):
        first = number % len(entries)
        for entry in (*entries[first:], *entries[:first]):
            take(entry, device)
    fastest = min((median(each) for each in entries[:2] if each.turns), default=float("nan"))
    return [as_row(network, each, fastest) for each in entries]


def ours(
    name: str, budget_bytes: int, model: nn.Module, network: Network, example: Any, step: Callable[[], object]
) -> Entry:
    begin_s = time.perf_counter()
    try:
        fit = outsize.within(model, example, budget_bytes, loss=network.loss, bf16=True)
    except OutsizeError as error:
        return Entry(name, failed=str(error), setup_s=time.perf_counter() - begin_s)
    return Entry(name, step, lambda: fit, budget_bytes, time.perf_counter() - begin_s, fit.plan)


def take(entry: Entry, device: torch.device) -> None:
    """Give a way its turn; what fails has no other."""
    if entry.run is None or entry.failed is not None:
        return
    try:
        with entry.inside(), watched(device) as seen:
            entry.turns.append(take_turn(entry.run, device, cap_bytes=entry.cap_bytes))
        entry.device_bytes.append(seen[0])
    except (RuntimeError, OutsizeError) as error:
        entry.failed = " ".join(str(error).split())[:200]


@contextmanager
def checkpointing(model: nn.Module, network: Network, example: Any) -> Iterator[None]:
    """Let timm do it where it can; elsewhere every block runs again, as torch's checkpoint does it."""
    own = getattr(model, "set_grad_checkpointing", None)
    with ExitStack() as undo:
        if own is not None:
            own(True)
            undo.callback(own, False)
        else:
            for path in block_paths(model, network, example):
                module = model.get_submodule(path)
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)
                undo.callback(delattr, module, "forward")
        yield


def block_paths(model: nn.Module, network: Network, example: Any) -> tuple[str, ...]:
    key = "_paths"
    if key not in vars(model):
        try:
            facts = traced(own_step(model, example, network.loss, None, True))
            sets = list_blocks(StepCost(facts), lambda _: 1.0)
            model.__dict__[key] = sets[-1].paths if sets else ()
        except TraceError:  # modules of several layers that stand in a row
            model.__dict__[key] = tuple(
                f"{path}.{name}".lstrip(".")
                for path, module in model.named_modules()
                if isinstance(module, nn.Sequential)
                for name, child in module.named_children()
                if len(list(child.children())) > 1
            )
    paths: tuple[str, ...] = model.__dict__[key]
    return paths


@contextmanager
def watched(device: torch.device) -> Iterator[list[int]]:
    """Ask the driver again and again how much of the device is taken; the first number is the most."""
    most, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(_POLL_S):
            free, total = torch.cuda.mem_get_info(device)
            most[0] = max(most[0], total - free)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        stop.set()
        watcher.join()


def median(entry: Entry) -> float:
    return statistics.median(each.ms for each in entry.turns)


def as_row(network: Network, entry: Entry, fastest_ms: float) -> dict:
    row: dict = {"network": network.name, "way": entry.name}
    if entry.failed is not None or not entry.turns:
        return {**row, "failed": entry.failed or "no turn"}
    ms, plan = median(entry), entry.plan
    row |= {
        "ms": round(ms, 2),
        "over_plain": round(ms / fastest_ms - 1, 3),
        "gib": round(max(each.peak_bytes or 0 for each in entry.turns) / 2**30, 2),
        "reserved_gib": round(max(each.reserved_bytes or 0 for each in entry.turns) / 2**30, 2),
        "device_gib": round(max(entry.device_bytes) / 2**30, 2),
        "planning_s": round(entry.setup_s, 1),
    }
    if plan is not None:
        row["predicted_gib"] = round(plan.peak_bytes / 2**30, 2)
        row["predicted_ms"] = None if plan.step_s is None else round(1e3 * plan.step_s, 1)
        row["budget_gib"] = round((entry.cap_bytes or 0) / 2**30, 2)
        row["parts"] = parts_of(plan)
    return row


def table(rows: list[dict], *, plan_only: bool) -> str:
    """Lay out the rows."""
    keys: tuple[str, ...] = ("ms", "over_plain", "gib")
    if plan_only:
        keys += ("used", "floor", "followed_s", "again_s", "search_s", "planning_s")
    else:
        keys += ("predicted_ms", "predicted_gib", "device_gib", "planning_s")
    lines = [f"| network | way | {' | '.join(keys)} | parts |", "|---|---|" + "---|" * (len(keys) + 1)]
    for row in rows:
        cells = [str(row.get(key, "")) for key in keys]
        lines.append(
            f"| {row['network']} | {row['way']} | {' | '.join(cells)} | {row.get('failed') or row.get('parts', '')} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
