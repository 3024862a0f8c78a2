"""Numbers that are none are found in losses, weights and the optimizer's state, and each is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outsize.errors import DivergedError
from outsize.train.soundness import LastLosses, SoundnessWatch

NAN, INF = float("nan"), float("inf")


def test_losses_are_read_together_and_the_first_bad_one_is_told() -> None:
    losses = LastLosses()
    assert losses.read() == (None, None)
    for step, value in enumerate((1.0, 2.0, INF, NAN), 7):
        losses.add(step, {"cross_entropy": torch.tensor(0.5), "dice": torch.tensor(value)})
    first, bad = losses.read()
    assert first == 7
    assert bad is not None
    assert (bad.step, bad.term, bad.value) == (9, "dice", INF)
    assert losses.read() == (None, None)


class _Told:
    def __init__(self, saved_step: int = 0) -> None:
        self.told: list[str] = []
        self.watch = SoundnessWatch(
            lambda: self.told.append("good"), lambda: self.told.append("bad"), saved_step
        )
        self.model = nn.Linear(2, 2)

    def step(self, number: int, loss: float) -> None:
        self.watch.add(number, {"loss": torch.tensor(loss)})


def test_a_state_is_good_once_a_step_went_well_behind_it() -> None:
    run = _Told()
    run.step(1, 0.5)
    run.watch.saved(1)
    run.watch.look(run.model, 1, 0.1)  # the loss of step 1 is of weights before the state
    run.step(2, 0.4)
    run.watch.look(run.model, 2, 0.1)
    assert run.told[-1] == "good"


@pytest.mark.parametrize(("bad_step", "told"), [(3, ["bad"]), (4, [])])
def test_a_state_is_bad_whose_next_step_has_no_number(bad_step: int, told: list[str]) -> None:
    run = _Told()
    run.watch.look(run.model, 2, 0.1)
    run.watch.saved(2)
    for number in (3, 4, 5):
        run.step(number, NAN if number >= bad_step else 0.5)
    with pytest.raises(
        DivergedError, match=rf"diverged at step {bad_step}: found loss = nan at learning rate 0\.1"
    ):
        run.watch.look(run.model, 5, 0.1)
    assert run.told == told


def test_weights_and_state_are_looked_at_where_they_are_to_be_saved() -> None:
    run = _Told()
    run.watch.look(run.model, 1, 0.1, dict)
    with pytest.raises(DivergedError, match=r"optimizer's 0\.exp_avg at learning rate"):
        run.watch.look(run.model, 1, 0.1, lambda: {"0.exp_avg": torch.tensor([INF])})
    with torch.no_grad():
        run.model.weight[0, 0] = NAN
    run.watch.look(run.model, 1, 0.1)
    with pytest.raises(DivergedError, match="and weight is the first weight with NaN or infinity"):
        run.watch.look(run.model, 1, 0.1, dict)
