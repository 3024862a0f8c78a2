"""What processes of one job add up, hear and agree on."""

from __future__ import annotations

from typing import Any

import torch
from tests.ranks.gang import Gang

from outsize.ranks import ALONE, World


def _all_of_it(world: World) -> dict[str, Any]:
    return {
        "sum": world.sum({"a": 1.0 + world.rank, "b": 0.5}),
        "tensor": world.add_up(torch.full((2,), float(world.rank))).tolist(),
        "agree": [world.agree(world.rank == 1), world.agree(False)],
        "broadcast": world.broadcast({"from": world.rank}),
        "gather": world.gather(world.rank * 10),
        "owner first": world.owner_first(lambda: world.rank),
        "deal": world.deal([*"abcdefg"]),
        "part": world.part_of(7),
    }


def test_all_ranks_hear_the_same(gang: Gang) -> None:
    first, second, third = gang.run(3, _all_of_it)
    for each in (first, second, third):
        assert each["sum"] == {"a": 6.0, "b": 1.5}
        assert each["tensor"] == [3.0, 3.0]
        assert each["agree"] == [True, False]
        assert each["broadcast"] == {"from": 0}
        assert each["gather"] == [0, 10, 20]
    assert [each["owner first"] for each in (first, second, third)] == [0, 1, 2]
    assert sorted(first["deal"] + second["deal"] + third["deal"]) == [*"abcdefg"]
    assert [each["part"] for each in (first, second, third)] == [slice(0, 2), slice(2, 4), slice(4, 7)]


def _of_some(world: World) -> dict[str, Any]:
    ordered = world.split([[0, 2], [1]], "more")
    if world.rank == 1:
        return {"alone": ordered.is_alone}
    return {
        "sum": ordered.sum({"a": 1.0 + world.rank}),
        "broadcast": ordered.broadcast(world.rank),
        "gather": ordered.gather(world.rank),
        "all": [ordered.rank_of_all(each) for each in range(ordered.size)],
        "groups": ordered.group() is not ordered.group("more"),
    }


def test_some_ranks_meet_without_the_others(gang: Gang) -> None:
    first, nobody, last = gang.run(3, _of_some)
    assert nobody == {"alone": True}
    for each in (first, last):
        assert each["sum"] == {"a": 4.0}
        assert each["broadcast"] == 0
        assert each["gather"] == [0, 2]
        assert each["all"] == [0, 2]
        assert each["groups"]


def test_a_process_alone_asks_nobody() -> None:
    assert _all_of_it(ALONE) == {
        "sum": {"a": 1.0, "b": 0.5},
        "tensor": [0.0, 0.0],
        "agree": [False, False],
        "broadcast": {"from": 0},
        "gather": [0],
        "owner first": 0,
        "deal": [*"abcdefg"],
        "part": slice(0, 7),
    }
    ALONE.barrier()


def test_what_a_machine_has_is_shared_among_its_ranks() -> None:
    assert World(5, 8, local_rank=1, local_size=4).share_of(10) == 2
    assert World(5, 8, local_rank=1, local_size=4).share_of(3) == 1
    assert ALONE.share_of(10) == 10
