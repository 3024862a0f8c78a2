"""Learning rates over a phase, and what trains in it."""

from __future__ import annotations

import math

import pytest

from outsize.errors import JobError
from outsize.models import build_model
from outsize.train.phases import (
    LrSchedule,
    TrainPhase,
    begin_phase,
    check_output,
    label_strides,
    set_trainable,
)


@pytest.mark.parametrize(
    ("schedule", "start", "middle", "last"),
    [
        (LrSchedule("constant"), 1.0, 1.0, 1.0),
        (LrSchedule("polynomial", power=0.9), 1.0, 0.5**0.9, 0.01**0.9),
        (LrSchedule("cosine"), 1.0, 0.5, (1 + math.cos(math.pi * 0.99)) / 2),
        (LrSchedule("step", step_epochs=3, step_factor=0.1), 1.0, 0.1, 0.001),
    ],
)
def test_start_middle_and_end(schedule: LrSchedule, start: float, middle: float, last: float) -> None:
    factors = [schedule.factor(step, 100, 10) for step in range(100)]
    assert factors[0] == pytest.approx(start)
    assert factors[50] == pytest.approx(middle)
    assert factors[99] == pytest.approx(last)
    assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize("kind", ["constant", "polynomial", "cosine"])
def test_warm_up_rises_to_the_full_rate_and_the_schedule_begins_there(kind: str) -> None:
    schedule = LrSchedule(kind, warmup_steps=4)
    assert [schedule.factor(step, 20, 5) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert schedule.factor(4 + 8, 20, 5) == pytest.approx(LrSchedule(kind).factor(8, 16, 5))


def test_a_phase_shorter_than_its_warm_up_stays_below_the_full_rate() -> None:
    factors = [LrSchedule("cosine", warmup_steps=10).factor(step, 4, 2) for step in range(4)]
    assert factors == [0.1, 0.2, 0.3, 0.4]


def test_prefixes_choose_what_trains() -> None:
    model = build_model("unet", num_classes=2, in_channels=1, levels=2, width=4)
    set_trainable(model, ("decoder", "head"))
    trained = {name.partition(".")[0] for name, each in model.named_parameters() if each.requires_grad}
    # what the decoder is to a person, not the one module of that name
    assert trained == {"up", "merge", "decoder", "head"}
    set_trainable(model, ("decoder.",))
    trained = {name.partition(".")[0] for name, each in model.named_parameters() if each.requires_grad}
    assert trained == {"decoder"}
    set_trainable(model, ())
    assert all(each.requires_grad for each in model.parameters())


def test_a_prefix_of_nothing_is_refused_and_changes_nothing() -> None:
    model = build_model("unet", num_classes=2, in_channels=1, levels=2, width=4)
    with pytest.raises(JobError, match=r"'heads'.*bottleneck, decoder, encoder, head, merge, up"):
        set_trainable(model, ("head", "heads"))
    assert all(each.requires_grad for each in model.parameters())


def test_a_phase_names_the_output_that_answers() -> None:
    model = build_model("erfnet", num_classes=2, in_channels=1, width=4)
    begin_phase(model, TrainPhase("first", 1, 0.1, ("encoder",), "encoder"))
    assert model.output == "encoder"
    trained = {name.partition(".")[0] for name, each in model.named_parameters() if each.requires_grad}
    assert trained == {"encoder", "encoder_head"}
    begin_phase(model, TrainPhase("then", 1, 0.1))
    assert model.output == "whole"
    assert all(each.requires_grad for each in model.parameters())
    assert label_strides(model, ("encoder", None)) == (1, 8)
    assert label_strides(model, (None,)) == (1,)
    built = build_model("erfnet", num_classes=2, in_channels=1, width=4, output="encoder")
    begin_phase(built, TrainPhase("only", 1, 0.1))
    assert built.output == "encoder"
    assert label_strides(built, (None,)) == (8,)


def test_an_output_that_is_not_there_is_refused() -> None:
    model = build_model("erfnet", num_classes=2, in_channels=1, width=4)
    with pytest.raises(JobError, match=r"output.*'decoder'.*encoder, whole"):
        check_output(model, "decoder")
    plain = build_model("unet", num_classes=2, in_channels=1, levels=2, width=4)
    check_output(plain, None)
    assert label_strides(plain, (None,)) == (1,)
    with pytest.raises(JobError, match=r"'encoder'.*one output"):
        check_output(plain, "encoder")
