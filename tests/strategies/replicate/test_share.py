"""Who has which samples of a batch: all of them once, in the micro-batches of one process."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.ranks import World
from outsize.strategies.replicate import Share, share_out


def _shares(num_samples: int, num_parts: int, size: int) -> list[Share]:
    return [share_out(World(rank, size), num_samples, num_parts) for rank in range(size)]


def _runs(share: Share) -> list[tuple[list[float], int, slice]]:
    """Return the samples of each micro-batch that a rank runs, how many all have in it, and which are its own."""
    images = torch.tensor(share.numbers, dtype=torch.float32)[:, None, None, None]
    batch = Batch(images, images[:, 0] > 0, ClassRasters(images[:, 0]), {})
    return [
        (share.take(batch, place).images.flatten().tolist(), share.of_all, share.mine)
        for place in share.cut(batch)
    ]


@pytest.mark.parametrize(("num_samples", "num_parts"), [(6, 1), (6, 2), (7, 2), (8, 3), (5, 4), (12, 4)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_run_the_micro_batches_of_one_process(num_samples: int, num_parts: int, size: int) -> None:
    shares = _shares(num_samples, num_parts, size)
    assert sorted(chain(*(each.numbers for each in shares))) == [*range(num_samples)]
    runs = [_runs(each) for each in shares]
    together = [[*chain(*(own for own, _, _ in parts))] for parts in zip(*runs, strict=True)]
    for part, of_ranks in zip(together, zip(*runs, strict=True), strict=True):
        assert {of_all for _, of_all, _ in of_ranks} == {len(part)}
        for own, _, mine in of_ranks:
            assert own
            assert part[mine] == own
    [alone] = _shares(num_samples, num_parts, 1)
    if min(len(own) for own, _, _ in _runs(alone)) >= size:
        assert together == [own for own, _, _ in _runs(alone)]


def test_other_micro_batches_keep_the_samples_of_each_rank() -> None:
    for share in _shares(7, 1, 2):
        before = [*share.numbers]
        share.recut(2)
        runs = _runs(share)
        assert [*chain(*(own for own, _, _ in runs))] == before
        assert [of_all for _, of_all, _ in runs] == [4, 3]
        share.recut(9)
        assert len(_runs(share)) == 3, "as many as the rank with the fewest samples can have"
