"""What a recorded step does where there is nothing to record with; how it replays is in tests/gpu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.strategies.cudagraph import capture as module
from outsize.strategies.cudagraph.capture import NUM_PLAIN, Recordings, graphed
from outsize.strategies.step import Terms


class Stage:
    """A step that counts, a model, and a recording that can be made without a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, paged: bool = False) -> None:
        self.paged = paged
        self.model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.num_steps, self.num_recorded, self.largest_px = 0, 0, 0
        self.step_does: Callable[[Batch], object] = lambda _: None
        self.told: list[str] = []
        stage = self

        class Recording:
            def finish(self) -> None:
                pass

            def replay(self, batch: Batch) -> Terms:
                return {"replayed": batch.images.sum()}

        def record(*_: object, paged: bool) -> Recording:
            assert paged == stage.paged
            stage.num_recorded += 1
            return Recording()

        monkeypatch.setattr(module, "_record", record)
        monkeypatch.setattr(module, "_is_on_gpu", lambda _: True)
        self.recordings = Recordings()
        self.run = graphed(self._step, self.model, self.told.append, recordings=self.recordings, paged=paged)

    def _step(self, batch: Batch, *, last: bool) -> Terms:
        self.num_steps += 1
        self.largest_px = max(self.largest_px, batch.images.shape[-1])
        self.step_does(batch)
        return {"called": batch.images.sum()}


def _batch(side_px: int = 4) -> Batch:
    flat = torch.zeros(1, side_px, side_px, dtype=torch.uint8)
    return Batch(torch.ones(1, 3, side_px, side_px), flat > 0, ClassRasters(flat), {"cross_entropy": 7.0})


def test_a_few_steps_are_called_then_one_is_recorded_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    answers = [next(iter(stage.run(_batch(), last=True))) for _ in range(NUM_PLAIN + 3)]
    assert answers == ["called"] * NUM_PLAIN + ["replayed"] * 3
    assert stage.num_recorded == 1


@pytest.mark.parametrize("what", ["shape", "totals", "trained", "mode", "output"])
def test_what_makes_another_step_is_recorded_anew(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, batch = Stage(monkeypatch), _batch()
    for _ in range(NUM_PLAIN + 1):
        stage.run(batch, last=True)
    if what == "shape":
        batch = _batch(8)
    elif what == "totals":
        batch = replace(batch, totals={"cross_entropy/8": 1.0})
    elif what == "trained":
        next(stage.model.parameters()).requires_grad_(False)
    elif what == "mode":
        stage.model[1].eval()
    else:
        stage.model.output = "encoder"
    assert "called" in stage.run(batch, last=True)
    for _ in range(NUM_PLAIN):
        stage.run(batch, last=True)
    assert stage.num_recorded == 2


def test_gradients_that_are_there_are_added_to_and_so_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    for parameter in stage.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(NUM_PLAIN + 2):
        stage.run(_batch(), last=True)
    assert stage.num_recorded == 0


def test_there_is_one_recording_at_a_time_and_an_end_of_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    for _ in range(3):
        for side_px in range(1, 7):
            for _ in range(NUM_PLAIN + 1):
                stage.run(_batch(side_px), last=True)
    assert stage.num_recorded == module._MOST


def test_what_is_let_go_is_recorded_anew_by_the_next_step_however_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    for _ in range(NUM_PLAIN):
        stage.run(_batch(), last=True)
    for _ in range(3 * module._MOST):
        assert "replayed" in stage.run(_batch(), last=True)
        stage.recordings.let_go()
    assert stage.num_recorded == 3 * module._MOST
    assert stage.num_steps == NUM_PLAIN


def test_what_cannot_be_recorded_goes_on_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(module, "_record", fail)
    for _ in range(NUM_PLAIN + 4):
        assert "called" in stage.run(_batch(), last=True)
    assert len(stage.told) == 1
    assert stage.told[0].endswith("as one CUDA graph: operation not permitted when stream is capturing")


def test_a_step_that_has_room_only_by_pages_is_recorded_at_once_after_a_corner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, paged=True)
    mean = stage.model[1].running_mean
    stage.step_does = lambda batch: mean.add_(1)  # as a norm would
    answers = [next(iter(stage.run(_batch(512), last=True))) for _ in range(2)]
    assert answers == ["replayed"] * 2
    assert (stage.num_steps, stage.num_recorded) == (1, 1)
    assert stage.largest_px == 128  # a quarter of the window
    assert mean.eq(0).all()  # which leaves no trace
    stage.recordings.let_go()
    stage.run(_batch(512), last=True)
    assert (stage.num_steps, stage.num_recorded) == (1, 2)


@pytest.mark.parametrize("error", [RuntimeError("no room\nmore"), ValueError("no room")])
def test_a_step_that_has_room_only_by_pages_and_cannot_be_recorded_is_short_of_memory(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(monkeypatch, paged=True)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "_warm", fail)
    with pytest.raises(torch.OutOfMemoryError, match=r"has room only if it is recorded cannot be: no room$"):
        stage.run(_batch(), last=True)
    assert stage.told == []


def test_a_cpu_records_nothing() -> None:
    told: list[str] = []
    run = graphed(lambda batch, last: {"called": batch.images.sum()}, nn.Conv2d(3, 4, 1), told.append)
    for _ in range(NUM_PLAIN + 4):
        assert "called" in run(_batch(), last=True)
    assert told == []
