"""Finds which pages of addresses can lie in the same page of memory: those that are never in use at the same time.

A recorded step takes and gives back the same addresses each time it is replayed, so it is known before when which of
them hold something. An address is only a name of a place in memory, and one place may have several:

    addresses   |a a a|b b|. . .|c c c c|        a and b are given back before c is taken
    memory      |a c|a c|a c|b c|b|

So tensors need not find their memory in one piece: what a step holds is what its fullest moment takes, by whole pages.
Where each address is taken once, pages that are handed out in the order of time are as few as can be.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_Span = tuple[int, int]  # from one event up to another, in their order
_Spans = tuple[_Span, ...]  # one after the other
_NEVER = sys.maxsize


@dataclass(frozen=True)
class AddressUse:
    """A stretch of addresses that is in use from one event to another."""

    address: int
    size_bytes: int
    start: int
    end: int | None  # None: for good


@dataclass
class _Alike:
    """Pages of memory that are in use at the same times."""

    spans: list[_Span]
    pages: list[int]


def shared_pages(uses: Iterable[AddressUse], page_bytes: int) -> dict[int, int]:
    """Return for each page of addresses that is ever used, counted from 0, the page of memory that it shall be."""
    same: dict[_Spans, list[int]] = defaultdict(list)
    for page, spans in _spans_of_pages(uses, page_bytes).items():
        same[spans].append(page)
    places: dict[int, int] = {}
    taken: list[_Alike] = []
    num_taken = 0
    for spans in sorted(same):
        waiting = same[spans]
        for alike in tuple(taken):
            if waiting and _are_apart(alike.spans, spans):
                rest = alike.pages[len(waiting) :]
                if rest:
                    taken.append(_Alike(list(alike.spans), rest))
                del alike.pages[len(waiting) :]
                places |= zip(waiting, alike.pages, strict=False)
                waiting = waiting[len(alike.pages) :]
                for span in spans:
                    insort(alike.spans, span)
        if waiting:
            taken.append(_Alike(list(spans), list(range(num_taken, num_taken + len(waiting)))))
            places |= zip(waiting, taken[-1].pages, strict=True)
            num_taken += len(waiting)
    return places


def _spans_of_pages(uses: Iterable[AddressUse], page_bytes: int) -> dict[int, _Spans]:
    found: dict[int, list[_Span]] = defaultdict(list)
    for use in uses:
        end = _NEVER if use.end is None else use.end
        last = (use.address + use.size_bytes - 1) // page_bytes
        for page in range(use.address // page_bytes, last + 1):
            found[page].append((use.start, end))
    return {page: _joined(spans) for page, spans in found.items()}


def _joined(spans: list[_Span]) -> _Spans:
    """Return spans in order, those that meet or overlap as one."""
    if len(spans) == 1:
        return tuple(spans)
    result: list[_Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((start, end))
    return tuple(result)


def _are_apart(taken: list[_Span], spans: _Spans) -> bool:
    """Say whether no span of either overlaps one of the other; a page is given on at the event that ends its use."""
    for start, end in spans:
        place = bisect_left(taken, (end, -1))  # the first that starts at the end, or later
        if place and taken[place - 1][1] > start:
            return False
    return True
