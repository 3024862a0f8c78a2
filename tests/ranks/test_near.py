"""Few numbers among processes of one machine: the same as over gloo, and nobody waits for who has left."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from tests.ranks.gang import Gang

from outsize.ranks import World, is_of_ranks
from outsize.ranks.near import MOST_BYTES, Near, meet_near


def _rows(world: World) -> dict[str, list[Any]]:
    many = MOST_BYTES // 8
    return {
        "halves": world.gathered(torch.full((3,), world.rank + 0.5, dtype=torch.bfloat16)).tolist(),
        "numbers": world.gathered(torch.tensor([world.rank, 7])).tolist(),
        "limit": [len(world.gathered(torch.arange(num) + world.rank).unique()) for num in (many, many + 1)],
        "sum": world.add_up(torch.full((2, 2), 1.0 + world.rank).t()).tolist(),
        "scalar": world.add_up(torch.tensor(2)).tolist(),
    }


def test_every_rank_has_the_rows_of_all_in_order(gang: Gang) -> None:
    expected = {
        "halves": [[0.5] * 3, [1.5] * 3, [2.5] * 3],
        "numbers": [[0, 7], [1, 7], [2, 7]],
        "limit": [MOST_BYTES // 8 + 2, MOST_BYTES // 8 + 3],
        "sum": [[6.0, 6.0], [6.0, 6.0]],
        "scalar": 6,
    }
    assert gang.run(3, _rows) == [expected] * 3


def _of_parts(world: World) -> tuple[bool, list[float]]:
    part = world.split([[0, 2], [1]])
    assert world.meeting is not None
    found = part.gathered(torch.tensor([float(world.rank)])).view(-1).tolist()
    return part.is_alone or world.meeting.near(part.members) is not None, found


def test_some_ranks_have_connections_of_their_own(gang: Gang) -> None:
    assert gang.run(3, _of_parts) == [(True, [0.0, 2.0]), (True, [1.0]), (True, [0.0, 2.0])]


def _meet_for_ever(world: World) -> None:
    while True:
        world.barrier()


def _one_leaves(world: World) -> str:
    world.barrier()
    if world.rank == 1:
        world.break_off()
        world.renew()
    else:
        with pytest.raises(RuntimeError) as caught:
            _meet_for_ever(world)
        assert is_of_ranks(caught.value)
        assert world.is_broken_off(caught.value)
        world.renew()
    return str(world.sum({"": 1.0})[""])


def test_who_leaves_is_noticed_and_all_meet_again(gang: Gang) -> None:
    assert gang.run(3, _one_leaves) == ["3.0"] * 3


def test_ranks_of_several_machines_have_no_short_way() -> None:
    """Here two threads, of which one hears of a place that is not on its machine."""
    told: list[list[Any]] = [[None, None], [None, None]]
    meets, found = Barrier(2), dict[int, Near | None]()

    def be(rank: int) -> None:
        asked = iter(told)

        def tell(mine: Any) -> list[Any]:
            row = next(asked)
            row[rank] = f"{mine}-elsewhere" if isinstance(mine, str) else mine
            meets.wait()
            return row

        found[rank] = meet_near(rank, 2, tell)

    threads = [Thread(target=be, args=(rank,)) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {0: None, 1: None}
    assert told[1] == [True, False]
