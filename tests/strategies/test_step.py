"""Parts of a step: which is the last, what they add up to, and what they draw at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.plan.plan import Tiling
from outsize.strategies.step import Step, Terms
from outsize.strategies.steps.micro import micro_batched
from outsize.strategies.steps.tiles import tiled

TILING = Tiling(core_px=8, halo_before_px=(2, 2), halo_after_px=(2, 2), stride_px=2)

WAYS: dict[str, Callable[[Step], Step]] = {
    "tiles": lambda step: tiled(step, TILING),
    "micro-batches": lambda step: micro_batched(step, 2),
    "both": lambda step: micro_batched(tiled(step, TILING), 2),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def _batch(num_samples: int = 3, side_px: int = 16) -> Batch:
    flat = torch.ones(num_samples, side_px, side_px)
    return Batch(
        torch.rand(num_samples, 1, side_px, side_px), flat > 0, ClassRasters(flat.byte()), {"loss": 1.0}
    )


class _Spy:
    """Remembers what it was called with, and draws some random numbers each time."""

    def __init__(self, num_drawn: int = 5) -> None:
        self.lasts: list[bool] = []
        self.sizes: list[int] = []
        self.drawn: list[Tensor] = []
        self._num_drawn = num_drawn

    def __call__(self, batch: Batch, *, last: bool) -> Terms:
        self.lasts.append(last)
        self.sizes.append(len(batch.images))
        self.drawn.append(torch.rand(self._num_drawn))
        return {"one": torch.tensor(float(len(self.lasts))), "two": torch.tensor(0.5)}


@every_way
def test_only_the_last_part_of_the_last_part_is_last(way: Callable[[Step], Step]) -> None:
    spy = _Spy()
    way(spy)(_batch(), last=True)
    assert spy.lasts == [False] * (len(spy.lasts) - 1) + [True]
    spy = _Spy()
    way(spy)(_batch(), last=False)
    assert not any(spy.lasts)


@every_way
def test_shares_of_each_term_add_up(way: Callable[[Step], Step]) -> None:
    spy = _Spy()
    terms = way(spy)(_batch(), last=True)
    num = len(spy.lasts)
    assert {name: float(value) for name, value in terms.items()} == {
        "one": num * (num + 1) / 2,
        "two": num / 2,
    }


@pytest.mark.parametrize(
    ("num_samples", "num_parts", "sizes"), [(4, 2, [2, 2]), (5, 4, [2, 2, 1]), (3, 1, [3]), (2, 9, [1, 1])]
)
def test_micro_batches_share_samples_out(num_samples: int, num_parts: int, sizes: list[int]) -> None:
    spy = _Spy()
    micro_batched(spy, num_parts)(_batch(num_samples), last=True)
    assert spy.sizes == sizes


def _drawn(way: Callable[[Step], Step], num_drawn: int = 5) -> list[Tensor]:
    spy = _Spy(num_drawn)
    way(spy)(_batch(), last=True)
    return spy.drawn


@every_way
def test_parts_draw_from_keys_of_their_own(way: Callable[[Step], Step]) -> None:
    torch.manual_seed(11)
    first, second = _drawn(way), _drawn(way)
    assert len({tuple(each.tolist()) for each in first + second}) == 2 * len(first)  # none is like another
    torch.manual_seed(11)
    again = _drawn(way, num_drawn=7)  # whatever the parts before have drawn
    assert all(ours[:5].equal(theirs) for ours, theirs in zip(again, first, strict=True))
    torch.manual_seed(12)
    assert not _drawn(way)[-1].equal(first[-1])


def test_one_part_draws_as_if_it_had_not_been_cut() -> None:
    batch = _batch(2, side_px=8)
    torch.manual_seed(11)
    plain = torch.rand(5)
    for way in (lambda step: micro_batched(step, 1), lambda step: tiled(step, TILING)):
        torch.manual_seed(11)
        spy = _Spy()
        way(spy)(batch, last=True)
        assert len(spy.drawn) == 1
        assert spy.drawn[0].equal(plain)
