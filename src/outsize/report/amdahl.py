"""What the times of a run went to, verb by verb, and what sharing each part among more would gain.

    speedup of the whole = 1 / (1 - share + share / factor)         Amdahl 1967

The factor counts from what shared the part when it was timed: a training of 24 h on 8 GPUs takes 12 h on 16, not 1.5 h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outsize.accounts import Account
from outsize.report.timeline import Span

_BEFORE_TRAINING = {
    "acquire",
    "prepare",
    "check",
    "plan",
    "demo",
}  # what holds for a training started over, too
_REST = "other"


@dataclass(frozen=True)
class Part:
    """What one verb did under one name, all its times together."""

    verb: str
    activity: str
    seconds: float
    parallel: int  # how many shared it

    @property
    def name(self) -> str:
        """What a row is called."""
        return f"{self.verb}: {self.activity}"


def speedup(share: float, factor: float) -> float:
    """Return how many times as fast the whole is where a part of it takes 1/factor of its time."""
    left = 1 - share + share / factor
    return math.inf if left <= 0 else 1 / left


def of_this_training(accounts: Sequence[Account]) -> list[Account]:
    """Return the accounts since the last training was started over, and what it stands on from before."""
    begun = [number for number, each in enumerate(accounts) if each.verb == "train" and not each.goes_on]
    first = begun[-1] if begun else 0
    stands_on = {each.verb: each for each in accounts[:first] if each.verb in _BEFORE_TRAINING}
    return [*sorted(stands_on.values(), key=lambda each: each.began_s), *accounts[first:]]


def parts_of(accounts: Sequence[Account]) -> list[Part]:
    """Add up what was done by verb and name, in the order of first times."""
    found: dict[tuple[str, str], Part] = {}
    for account in accounts:
        taken = [(each.name, each.seconds, each.parallel) for each in account.activities]
        for name, seconds, parallel in (*taken, (_REST, account.rest_s, 1)):
            part = found.get((account.verb, name), Part(account.verb, name, 0.0, parallel))
            found[account.verb, name] = replace(
                part, seconds=part.seconds + seconds, parallel=max(part.parallel, parallel)
            )
    return list(found.values())


def spans_of(accounts: Sequence[Account], least_share: float = 0.005) -> list[Span]:
    """Return what was done when, the times in which no verb ran cut out; what is hardly seen counts as other."""
    whole_s = sum(each.seconds for each in accounts)
    seen = {part.name for part in parts_of(accounts) if part.seconds >= least_share * whole_s}
    spans: list[Span] = []
    cut_s, end_s = min((each.began_s for each in accounts), default=0.0), 0.0
    for account in sorted(accounts, key=lambda each: each.began_s):
        start_s = account.began_s - cut_s
        if start_s > end_s:  # nobody worked
            cut_s, start_s = cut_s + start_s - end_s, end_s
        for each in account.activities:
            name = f"{account.verb}: {each.name}"
            if name in seen:
                spans += [Span(name, start_s + start, start_s + end) for start, end in each.spans]
        spans += [
            Span(f"{account.verb}: {_REST}", start_s + start, start_s + end)
            for start, end in _between(account)
            if f"{account.verb}: {_REST}" in seen
        ]
        end_s = max(end_s, start_s + account.seconds)
    return spans


def _between(account: Account) -> list[tuple[float, float]]:
    """Return when a verb was in no activity."""
    taken = sorted(span for each in account.activities for span in each.spans)
    edges = [0.0, *(edge for span in taken for edge in span), account.seconds]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]
