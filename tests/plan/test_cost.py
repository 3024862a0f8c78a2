"""What a step holds, on a step small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

from outsize.plan.cost import Changed, StepCost
from outsize.plan.step import Role, StepFacts, StepOp, Storage

KIB = 1024


def test_what_is_held_during_each_operation(small_step: StepFacts) -> None:
    held = [each // KIB for each in StepCost(small_step).live_bytes()]
    #       x, w, a  +b    relu  +c    +gc   +gb   -c -gc  -b +ga  -a -gb
    assert held == [4, 6, 6, 8, 10, 12, 8, 8, 4]
    assert StepCost(small_step).peak_bytes() == 12 * KIB


def test_a_storage_made_anew_is_gone_in_between(small_step: StepFacts) -> None:
    held = [each // KIB for each in StepCost(small_step).live_bytes(Changed(recomputed={3: 5}))]
    assert held == [4, 6, 6, 8, 8, 12, 8, 8, 4]


def test_what_is_held_for_others_lives_longer(small_step: StepFacts) -> None:
    held = [each // KIB for each in StepCost(small_step).live_bytes(Changed(held={4: 8}))]
    assert held == [4, 6, 6, 8, 10, 12, 10, 10, 4]


def _forward(*ops: tuple[str, str, tuple[int, ...], tuple[int, ...]], roles: dict[int, Role]) -> StepFacts:
    """A forward of operations (kind, module, read, made), then one operation of backward."""
    made = [
        StepOp(index, kind, module, 0, False, inputs, outputs, 0, 0, "float32")
        for index, (kind, module, inputs, outputs) in enumerate(ops)
    ]
    made.append(StepOp(len(ops), "sum_backward", "", 0, True, (), (), 0, 0, "float32"))
    numbers = sorted({each for op in made for each in (*op.inputs, *op.outputs)})
    storages = tuple(Storage(each, KIB, -1, len(made), roles.get(each, "activation")) for each in numbers)
    return StepFacts(tuple(made), storages, (), training=True)


def test_who_calls_a_module_holds_what_it_gives_until_the_module_returns() -> None:
    step = _forward(
        ("cat", "", (0,), (1,)),
        ("convolution", "block.conv", (1,), (2,)),
        ("relu", "block.relu", (2,), (3,)),
        ("convolution", "other", (3,), (4,)),
        roles={},
    )
    let_go = StepCost(step).let_go
    assert let_go[1] == 3  # read by the first layer of the block, gone when the block is done
    assert let_go[2] == 3
    assert let_go[3] == 4


def test_a_name_keeps_what_it_stands_for_until_the_statement_is_done() -> None:
    step = _forward(
        ("relu", "first", (0,), (1,)),
        ("convolution", "up", (1,), (2,)),
        ("cat", "", (2,), (3,)),
        ("convolution", "block.conv", (3,), (4,)),
        ("relu", "block.relu", (4,), (5,)),
        ("convolution", "head", (5,), (6,)),
        roles={},
    )
    let_go = StepCost(step).let_go
    assert let_go[1] == 5  # x = block(cat(skip, up(x)))
    assert let_go[2] == 3  # nobody names what up returns


def test_autocast_holds_its_copies_of_weights_until_backward() -> None:
    step = _forward(
        ("_to_copy", "conv", (0,), (1,)),
        ("_to_copy", "conv", (2,), (3,)),
        ("convolution", "conv", (1, 3), (4,)),
        ("relu", "relu", (4,), (5,)),
        roles={0: "weight", 2: "input"},
    )
    let_go = StepCost(step).let_go
    assert let_go[1] == 4
    assert let_go[3] == 3


def test_what_is_made_twice_may_be_there_twice(small_step: StepFacts) -> None:
    held = [each // KIB for each in StepCost(small_step).live_bytes(Changed(twice={3: (6, 5)}))]
    assert held == [4, 6, 6, 8, 10, 14, 8, 8, 4]
    held = [each // KIB for each in StepCost(small_step).live_bytes(Changed(twice={3: (4, 6)}))]
    assert held == [4, 6, 6, 8, 8, 10, 8, 8, 4]


def test_a_part_of_a_step_finds_the_gradients_of_others(small_step: StepFacts) -> None:
    storages = list(small_step.storages)
    storages[7] = replace(storages[7], role="gradient")
    facts = replace(small_step, storages=tuple(storages))
    whole, part = StepCost(facts).live_bytes(), StepCost(facts, is_part=True).live_bytes()
    size = storages[7].size_bytes
    assert [one - other for one, other in zip(part, whole, strict=True)] == [size] * 9
