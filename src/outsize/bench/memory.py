"""Peak memory against step time: every way to run one training step, in turns, and ours within budgets.

other ways set up | plain ways timed: S, P | ours planned and set up, each under its cap | rounds of all
                            '-> budget f = S + f (P - S), or as given: what the allocator may hold, gaps included
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from outsize.bench.cap import Cap
from outsize.bench.entry import Entry
from outsize.bench.gauge import Turn, take_turn, weigh_on_cpu
from outsize.bench.measured_step import batch_bytes, resident_bytes
from outsize.bench.ways import OURS, WAYS, Blocks
from outsize.errors import JobError, ModelError, OutsizeError, explain
from outsize.measure.memory import sweep
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.stopping import Stopped
from outsize.strategies.step import Step
from outsize.train.made_up import MadeUpStep
from outsize.units import format_bytes

BUDGETS = (0.5, 0.33, 0.25)
_SETTLING = 3  # turns of the plain ways before budgets are set by the fastest of them
_LESS = (1.0, 0.985, 0.97, 0.94, 0.9)  # shares of a budget that plans are made for, until one does
_SLOW, _EVERY = 2.0, 4  # other ways that take longer than so many times plain soon run in every fourth round
# What a way may fail with while the others go on. Out of memory and errors of torch.compile are RuntimeErrors.
_FAILURES = (RuntimeError, OutsizeError)
_TEXT = 300  # characters of torch's errors that are kept


@dataclass(frozen=True)
class Planning:
    """How ours is planned for a limit: as a training is, but for weights on the host and trials of recordings."""

    plan_for: Callable[[int], Plan]
    plain_bytes: int  # predicted peak of the plain step: what budgets are set by where it does not run


def check_budgets(given: Sequence[float | Cap]) -> tuple[float | Cap, ...]:
    """Refuse budgets that are none; return shares from the largest to the least, then caps as given, each once."""
    shares = [each for each in given if not isinstance(each, Cap)]
    for share in shares:
        if not 0 < share <= 1:
            needed = "shares above 0 and up to 1 of what plain takes beyond weights and optimizer"
            raise JobError(
                explain("bad value in --budgets", f"{share:g}", needed, "write e.g. 0.5,0.33,0.25")
            )
    caps = dict.fromkeys(each for each in given if isinstance(each, Cap))
    return (*sorted(set(shares), reverse=True), *caps)


def measure_memory(
    made_up: MadeUpStep,
    names: Sequence[str],
    budgets: Sequence[float | Cap],
    blocks: Blocks,
    planning: Planning,
    *,
    rounds: int,
    reporter: Reporter,
) -> dict[str, Any]:
    """Run all ways in turns and return what was seen, in the form that memory.json has."""
    entries = [_other(made_up, name, blocks, reporter) for name in names if name != OURS]
    plain, plain_bytes = _settle_plain(made_up, entries) or (None, planning.plain_bytes)
    if OURS in names:
        entries += [_ours(made_up, each, plain_bytes, planning, reporter) for each in budgets]
    if not any(each.run for each in entries):
        found, remedy = entries[0].failed, "mend the model, or take a smaller batch"
        raise ModelError(explain("no way runs the training step", found, "one that does", remedy))
    num_rounds = _run_rounds(made_up, entries, plain, rounds, reporter)
    again = next((each for each in entries if each.name == "again" and each.run), None)
    eager = next((each for each in entries if each.name == "plain" and each.run), None)
    return {
        "resident_bytes": resident_bytes(made_up),
        "batch_bytes": batch_bytes(made_up),
        "plain": {
            "way": None if plain is None else plain.name,
            "label": None if plain is None else plain.label,
            "ms": None if plain is None else plain.ms,
            "peak_bytes": plain_bytes,
            "measured": plain is not None,
        },
        "control": None if again is None or eager is None else again.over(eager),
        "rounds": num_rounds,
        "num_blocks": len(blocks),
        "rows": [each.as_row(plain, entries) for each in entries],
    }


def _other(made_up: MadeUpStep, name: str, blocks: Blocks, reporter: Reporter) -> Entry:
    way = WAYS[name]
    entry = Entry(name, way.label, is_plain=way.is_plain, compiles=way.compiles)
    reporter.say("way", f"setting up {way.label}{': this takes a while' if way.compiles else ''}", way=name)
    _set_up(made_up, entry, lambda: way.make(made_up, blocks), reporter)
    return entry


def _ours(
    made_up: MadeUpStep, given: float | Cap, plain_bytes: int, planning: Planning, reporter: Reporter
) -> Entry:
    """Plan for a budget; and for a little less where the first plan took more, or the allocator more than there was."""
    beyond: Entry | None = None
    for less in _LESS:
        entry = _planned(made_up, given, plain_bytes, planning, reporter, less=less)
        if not entry.is_short:
            break
        if made_up.device.type == "cpu":  # on a GPU it would hold memory that the next one needs
            beyond = entry
    # one that took a little more rather than none
    return beyond if beyond is not None and entry.failed is not None else entry


def _planned(
    made_up: MadeUpStep,
    given: float | Cap,
    plain_bytes: int,
    planning: Planning,
    reporter: Reporter,
    *,
    less: float,
) -> Entry:
    if isinstance(given, Cap):
        entry = Entry(f"{OURS}-{given.text}", given.label, is_ours=True)
        entry.budget_bytes = given.limit_bytes(plain_bytes)
    else:
        entry = Entry(f"{OURS}-{given:g}", f"ours, {100 * given:g} %", is_ours=True, share=given)
        lasting_bytes = resident_bytes(made_up)
        entry.budget_bytes = math.floor(lasting_bytes + given * (plain_bytes - lasting_bytes))
    entry.cap_bytes = entry.budget_bytes if made_up.device.type == "cuda" else None
    limit_bytes = math.floor(less * entry.budget_bytes)

    def make() -> Step:
        entry.plan = planning.plan_for(limit_bytes)
        entry.compiles = entry.plan.compile is not None
        reporter.say("planned", f"{entry.label}: {entry.plan.why[-1]}", way=entry.name)
        return made_up.composed(
            entry.plan, tell=entry.notes.append, meter=entry.meter, recordings=entry.recordings
        )

    reporter.say("way", f"{entry.label}: planning for {format_bytes(limit_bytes)}", way=entry.name)
    _set_up(made_up, entry, make, reporter)
    if less < 1:
        entry.notes.append(
            f"planned for {less:.1%} of the budget, for plans for more did not fit as they ran"
        )
    return entry


def _set_up(made_up: MadeUpStep, entry: Entry, make: Callable[[], Step], reporter: Reporter) -> None:
    """Make a way and run its first steps, which compile and learn and do not count."""
    start_s = time.perf_counter()

    def begin() -> None:
        entry.run = made_up.runs(make())
        turn = _one_turn(made_up, entry)
        entry.is_short = turn.num_retries > 0
        if made_up.device.type == "cpu" and not entry.compiles:
            entry.weighed_bytes = weigh_on_cpu(entry.run, resident_bytes(made_up) + batch_bytes(made_up))
            # nothing stops it there, so what it took is held against what it was given
            entry.is_short = entry.budget_bytes is not None and entry.weighed_bytes > entry.budget_bytes

    _attempt(made_up, entry, begin)
    entry.setup_s = time.perf_counter() - start_s
    if entry.failed is not None:
        reporter.say("failed", f"{entry.label}: {entry.failed}", way=entry.name)


def _settle_plain(made_up: MadeUpStep, entries: Sequence[Entry]) -> tuple[Entry, int] | None:
    """Return the fastest way that gives nothing up, of those whose memory can be seen, and its peak."""
    plain = [each for each in entries if each.is_plain]
    for number in range(_SETTLING):
        for entry in plain:
            _take_turn(made_up, entry, number)
    seen = [(each.ms, each.peak_bytes, each) for each in plain if each.run and each.ms and each.peak_bytes]
    for entry in plain:
        entry.turns.clear()  # those of the rounds alone can be compared with the others'
    if not seen:
        return None
    _, peak_bytes, fastest = min(seen, key=lambda each: each[0])
    return fastest, peak_bytes


def _run_rounds(
    made_up: MadeUpStep, entries: Sequence[Entry], plain: Entry | None, rounds: int, reporter: Reporter
) -> int:
    """Let all ways that run have their turn in every round, beginning with another one each time.

    Returns how many rounds there were: who interrupts one has the figures of those before it.
    """
    slow: set[str] = set()
    running = [each for each in entries if each.run is not None]
    number = 0
    try:
        with reporter.bar("rounds", rounds * len(running), "turns") as bar:
            for number in range(rounds):
                first = number % len(running)
                for entry in (*running[first:], *running[:first]):
                    if entry.name not in slow or number % _EVERY == 0:
                        _take_turn(made_up, entry, number)
                    bar.advance(1, **_shown(entry, number))
                if number + 1 == _EVERY // 2 and plain is not None:
                    slow = {each.name for each in running if _is_slow(each, plain)}
    except (KeyboardInterrupt, Stopped):
        if number == 0:
            raise
        for entry in running:
            entry.turns.pop(number, None)
        reporter.say(
            "warning", f"warning: interrupted in round {number + 1}: figures are of {number} of {rounds}"
        )
        return number
    return rounds


def _shown(entry: Entry, number: int) -> dict[str, object]:
    turn = entry.turns.get(number)
    return {"way": entry.label} if turn is None else {"way": entry.label, "ms": round(turn.ms, 2)}


def _is_slow(entry: Entry, plain: Entry) -> bool:
    """Whether a way needs so long that it shall not have every turn, by its best: one turn may be disturbed."""
    if entry.is_ours or entry.least_ms is None or plain.least_ms is None:
        return False
    return entry.least_ms > _SLOW * plain.least_ms


def _take_turn(made_up: MadeUpStep, entry: Entry, number: int) -> None:
    def turn() -> None:
        entry.turns[number] = _one_turn(made_up, entry)

    if entry.run is not None:
        _attempt(made_up, entry, turn)


def _one_turn(made_up: MadeUpStep, entry: Entry) -> Turn:
    assert entry.run is not None
    try:
        turn = take_turn(entry.run, made_up.device, cap_bytes=entry.cap_bytes)
        held_bytes = entry.recordings.held_bytes
        return turn if held_bytes is None else replace(turn, reserved_bytes=held_bytes)
    finally:
        entry.recordings.let_go()  # the others need the memory


def _attempt(made_up: MadeUpStep, entry: Entry, what: Callable[[], None]) -> None:
    """Do something; a failure is the end of this way and no other, and leaves nothing behind."""
    try:
        what()
    except _FAILURES as error:
        text = " ".join(str(error).split())
        entry.failed = text if isinstance(error, OutsizeError) else f"{type(error).__name__}: {text[:_TEXT]}"
        entry.run, entry.is_short = None, isinstance(error, torch.OutOfMemoryError)
    if entry.failed is not None:
        made_up.forget()
        sweep(made_up.device)
