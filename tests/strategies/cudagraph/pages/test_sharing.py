"""Pages of addresses share pages of memory where they are never in use at the same time."""

from __future__ import annotations

import random
from itertools import combinations

from outsize.strategies.cudagraph.pages.sharing import AddressUse, shared_pages

PAGE = 8


def _pages(use: AddressUse) -> set[int]:
    return set(range(use.address // PAGE, (use.address + use.size_bytes - 1) // PAGE + 1))


def _fullest(uses: list[AddressUse]) -> int:
    """Return the most pages that are in use at once."""
    times = {use.start for use in uses}
    live = [set().union(*(_pages(use) for use in uses if use.start <= time < use.end)) for time in times]
    return max(map(len, live))


def _check(uses: list[AddressUse], places: dict[int, int]) -> None:
    assert set(places) == set().union(*map(_pages, uses))
    for one, other in combinations(uses, 2):
        if one.start < other.end and other.start < one.end:
            mine = {places[page] for page in _pages(one) - _pages(other)}
            assert not mine & {places[page] for page in _pages(other) - _pages(one)}


def test_what_is_given_back_is_taken_by_others_in_pieces() -> None:
    # a and b are given back before c is taken, which is larger than either
    uses = [
        AddressUse(0, 3 * PAGE, 0, 2),
        AddressUse(3 * PAGE, 2 * PAGE, 1, 3),
        AddressUse(8 * PAGE, 4 * PAGE, 3, 4),
    ]
    places = shared_pages(uses, PAGE)
    _check(uses, places)
    assert max(places.values()) + 1 == 5


def test_addresses_that_are_taken_once_need_no_more_than_the_fullest_moment() -> None:
    chance, uses, address = random.Random(0), list[AddressUse](), 0
    for _ in range(150):
        size_bytes, start = chance.choice((1, PAGE, 5 * PAGE + 3, 40 * PAGE)), chance.randrange(400)
        uses.append(AddressUse(address, size_bytes, start, start + chance.randrange(1, 60)))
        address += -(-size_bytes // PAGE) * PAGE
    places = shared_pages(uses, PAGE)
    _check(uses, places)
    assert max(places.values()) + 1 == _fullest(uses)


def test_addresses_that_are_taken_again_and_pages_of_several_are_kept_apart() -> None:
    chance, uses = random.Random(1), list[AddressUse]()
    for _ in range(120):
        start, address = chance.randrange(200), chance.randrange(60 * PAGE)
        uses.append(
            AddressUse(address, chance.randrange(1, 6 * PAGE), start, start + chance.randrange(1, 20))
        )
    _check(uses, shared_pages(uses, PAGE))


def test_nothing_needs_nothing() -> None:
    assert shared_pages([], PAGE) == {}
