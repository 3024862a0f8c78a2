"""The loop over phases with a toy model and stand-ins for all it calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.errors import DivergedError
from outsize.train import waits
from outsize.train.loop import Hooks, Position, TrainSettings, fit
from outsize.train.phases import LrSchedule, TrainPhase

STEPS = 4
PHASES = (TrainPhase("head", 2, 0.1, trainable=("1",)), TrainPhase("all", 3, 0.01))


class Killed(Exception):
    """Stands in for a signal."""


@dataclass
class Bench:
    """Stand-ins that write down what happens to them."""

    scores: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5)
    die_at: int | None = None  # total steps
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    states: list[tuple[dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = field(default_factory=list)
    epochs: list[tuple[Position, bool]] = field(default_factory=list)
    modes: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1), nn.Dropout(0.5))

    def step(self, batch: Batch, *, last: bool) -> dict[str, Tensor]:
        assert last
        self.modes.append(self.model.training)
        loss = self.model(batch.images).square().mean()
        loss.backward()
        return {"loss": loss.detach()}

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        for step in range(first_step, STEPS):
            generator = torch.Generator().manual_seed(epoch * 100 + step)
            empty = torch.zeros(1)
            yield Batch(torch.randn(8, 3, generator=generator), empty, ClassRasters(empty), {"loss": 1.0})

    def validate(self, model: nn.Module) -> dict[str, float]:
        assert not model.training
        return {"mean_iou": self.scores[len(self.lines_of("epoch"))]}

    def log(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)
        if line["kind"] == "step" and line["step"] == self.die_at:
            raise Killed

    def save_state(self, optimizer: Mapping[str, Tensor], position: Mapping[str, Any]) -> None:
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.states.append(({k: v.clone() for k, v in optimizer.items()}, dict(position), weights))

    def lines_of(self, kind: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]

    def fit(self, resume: Any = None, **changes: Any) -> Position:
        recipe = {
            "phases": PHASES,
            "schedule": LrSchedule("constant"),
            "optimizer": "adamw",
            "momentum": 0.9,
            "weight_decay": 0.01,
            "steps_per_epoch": STEPS,
            "seed": 5,
            "checkpoint_steps": 3,
        }
        hooks = Hooks(
            self.batches, self.validate, self.log, self.save_state, lambda *end: self.epochs.append(end)
        )
        return fit(self.model, self.step, TrainSettings(**{**recipe, **changes}), hooks, resume)


def test_phases_run_in_order_each_with_its_rate_and_what_trains() -> None:
    bench = Bench()
    before = bench.model[0].weight.clone()
    changed = []
    original = bench.save_state

    def watch(optimizer: Mapping[str, Tensor], position: Mapping[str, Any]) -> None:
        changed.append((position["phase"], not torch.equal(bench.model[0].weight, before)))
        original(optimizer, position)

    bench.save_state = watch  # type: ignore[method-assign]
    end = bench.fit()
    assert [line["lr"] for line in bench.lines_of("step")] == [0.1] * 2 * STEPS + [0.01] * 3 * STEPS
    assert {changed_here for phase, changed_here in changed if phase == 0} == {False}
    assert {changed_here for phase, changed_here in changed if phase == 1} == {True}
    assert [line["epoch"] for line in bench.lines_of("epoch")] == [1, 2, 3, 4, 5]
    assert (end.phase, end.total_epochs, end.total_steps, end.stopped) == (2, 5, 5 * STEPS, False)
    assert all(bench.modes)


def test_the_best_epoch_is_marked() -> None:
    bench = Bench(scores=(0.3, 0.2, 0.5, 0.5, 0.1))
    end = bench.fit()
    assert [better for _, better in bench.epochs] == [True, False, True, False, False]
    assert (end.best_score, end.best_epoch) == (0.5, 2)


@pytest.mark.parametrize(("patience", "num_epochs"), [(1, 2), (2, 5), (3, 5)])
def test_early_stopping_waits_as_long_as_asked(patience: int, num_epochs: int) -> None:
    bench = Bench(scores=(0.3, 0.2, 0.4, 0.3, 0.2))
    end = bench.fit(early_stop_epochs=patience, phases=(replace(PHASES[1], epochs=5),))
    assert end.total_epochs == num_epochs
    assert end.stopped == (patience < 3)


def test_stopping_early_ends_a_phase_and_the_next_has_patience_of_its_own() -> None:
    bench = Bench(scores=(0.3, 0.2, 0.1, 0.15, 0.12))
    phases = (replace(PHASES[0], epochs=4), replace(PHASES[1], epochs=3))
    end = bench.fit(early_stop_epochs=1, phases=phases)
    assert [line["phase"] for line in bench.lines_of("epoch")] == [0, 0, 1, 1]
    assert (end.total_epochs, end.stopped) == (4, True)


def test_a_stopped_training_stays_stopped_when_resumed() -> None:
    phases = (replace(PHASES[1], epochs=5),)
    bench = Bench(scores=(0.3, 0.2))
    bench.fit(early_stop_epochs=1, phases=phases)
    optimizer, position, _ = bench.states[-1]
    again = Bench()
    end = again.fit((optimizer, position), early_stop_epochs=1, phases=phases)
    assert end.stopped
    assert again.lines == []


@pytest.mark.parametrize("die_at", [1, 3, 4, 7, 8, 9, 13, 20])
def test_resumed_equals_uninterrupted(die_at: int) -> None:
    """Also over the border of two phases, after eight steps; dropout draws the same."""
    whole = Bench()
    expected = whole.fit()
    killed = Bench(die_at=die_at)
    with pytest.raises(Killed):
        killed.fit()
    resumed = Bench()
    state = None
    if killed.states:
        optimizer, position, weights = killed.states[-1]
        resumed.model.load_state_dict(weights)
        resumed.lines = [line for line in killed.lines if line["step"] <= position["total_steps"]]
        state = (optimizer, position)
    assert resumed.fit(state) == expected
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
    assert _figures(resumed.lines) == _figures(whole.lines)


def _figures(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if not name.endswith("_s")} for line in lines]


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    bench = Bench()
    with torch.no_grad():
        bench.model[0].weight.fill_(float("nan"))  # type: ignore[union-attr, operator]
    told = r"diverged at step 1: found loss = nan at learning rate 0\.1, and 0\.weight is the first weight with NaN"
    with pytest.raises(DivergedError, match=told):
        bench.fit()
    assert not bench.epochs


def test_scores_of_one_output_are_no_measure_for_another() -> None:
    bench = Bench(scores=(0.3, 0.5, 0.1, 0.2, 0.15))
    bench.model.outputs = {"first": 1, "second": 1}  # type: ignore[assignment]
    bench.model.output = bench.model.usual_output = "second"  # type: ignore[assignment]
    end = bench.fit(phases=(replace(PHASES[0], output="first"), PHASES[1]))
    assert [better for _, better in bench.epochs] == [True, True, True, True, False]
    assert end.best_score == 0.2
    assert bench.model.output == "second"


def _ticking(monkeypatch: pytest.MonkeyPatch, bench: Bench, step_s: float, validate_s: float = 0.0) -> None:
    """Let every step and every validation take so long, and nothing else take any time."""
    now_s = [100.0]
    step, validate = bench.step, bench.validate

    def slow(batch: Batch, *, last: bool) -> dict[str, Tensor]:
        now_s[0] += step_s
        return step(batch, last=last)

    def slowly(model: nn.Module) -> dict[str, float]:
        now_s[0] += validate_s
        return validate(model)

    bench.step, bench.validate = slow, slowly  # type: ignore[method-assign]
    monkeypatch.setattr("outsize.train.loop.time.monotonic", lambda: now_s[0])


def test_a_limit_of_time_ends_each_phase_at_its_share_and_the_rate_is_down_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    _ticking(monkeypatch, bench, step_s=1.0)
    end = bench.fit(max_s=10.0, schedule=LrSchedule("polynomial", power=1.0))
    # 2 and 3 of 5 epochs: 4 s and 6 s of 10
    rates = [line["lr"] for line in bench.lines_of("step")]
    assert rates == pytest.approx(
        [0.1 * left for left in (1, 0.75, 0.5, 0.25)] + [0.01 * (1 - spent / 6) for spent in range(6)]
    )
    assert [line["epoch"] for line in bench.lines_of("epoch")] == [1, 2, 3]  # the last of which was cut short
    assert (end.phase, end.total_steps, end.stopped, end.spent_s) == (2, 10, False, 10.0)


def test_a_limit_of_time_counts_what_was_spent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Bench(die_at=5)
    _ticking(monkeypatch, first, step_s=1.0)
    with pytest.raises(Killed):
        first.fit(max_s=10.0)
    optimizer, position, weights = first.states[-1]
    second = Bench()
    _ticking(monkeypatch, second, step_s=1.0)
    second.model.load_state_dict(weights)
    assert second.fit((optimizer, position), max_s=10.0).spent_s == 10.0
    assert len(second.lines_of("step")) == 10 - position["total_steps"]


def test_a_limit_of_time_counts_validations_of_sessions_before(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    _ticking(monkeypatch, bench, step_s=1.0, validate_s=0.5)
    bench.fit(max_s=10.0)
    assert [position["spent_s"] for _, position, _ in bench.states if not position["step"]] == [
        4.5,
        9.0,
        10.5,
    ]


def test_a_phase_that_time_is_over_for_is_named_and_leaves_the_best_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    _ticking(monkeypatch, bench, step_s=1.0, validate_s=7.0)  # 11 s of 10 after the first epoch
    phases = (PHASES[0], TrainPhase("whole", 3, 0.01, output="whole"))
    end = bench.fit(max_s=10.0, phases=phases)
    assert (end.phase, end.total_steps, end.missed, end.best_score) == (2, 4, ("whole",), 0.1)
    optimizer, position, _ = bench.states[-1]
    again = Bench()
    _ticking(monkeypatch, again, step_s=1.0)
    end = again.fit((optimizer, position), max_s=10.0, phases=phases)
    assert (end.missed, end.best_score, again.lines) == (("whole",), 0.1, [])


def test_a_limit_of_time_that_is_not_reached_changes_nothing() -> None:
    free, limited = Bench(), Bench()
    free.fit(schedule=LrSchedule("cosine"))
    limited.fit(schedule=LrSchedule("cosine"), max_s=1e9)
    assert [each["lr"] for each in free.lines_of("step")] == [each["lr"] for each in limited.lines_of("step")]


@pytest.mark.parametrize("is_through", [True, False])
def test_a_gpu_that_has_work_left_has_not_waited(is_through: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mark:
        def query(self) -> bool:
            return is_through

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, _: Mark) -> float:
            return 1e9

    monkeypatch.setattr(waits, "_mark_work", lambda _: Mark())
    monkeypatch.setattr(waits, "_mark_now", lambda _: Mark())
    bench = Bench()
    bench.fit()
    lines = bench.lines_of("step")
    first = [number % STEPS == 0 for number in range(len(lines))]  # of an epoch: nothing was called before it
    found = [each["wait_s"] > 0 for each in lines]
    assert found == ([True] * len(lines) if is_through else first)
