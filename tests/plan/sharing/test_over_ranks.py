"""Ranks that share a batch: whole pictures where that fits, else the faster way to lay one on several of them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from outsize.errors import PlanError
from outsize.plan.links import measured_link
from outsize.plan.plan import Plan, Spatial
from outsize.plan.sharing import BordersSent, OverRanks, choose_over_ranks, over_ranks, part_of
from outsize.plan.way import StepRequest
from outsize.tiles.halo import Halo, Reach
from outsize.units import sides_of

_HALO = Halo(Reach(22, 22), Reach(22, 22), 4)
_TASK = StepRequest(1, 256, mock.Mock(), mock.Mock(), _HALO)


def _plan(
    num: int, batch: int, fits_px: float, *, asked: str = "auto", message_s: float = 1e-5, **given: Any
) -> Plan:
    """Plan a step that takes a microsecond and a byte for each pixel; 10 messages of a kilobyte cross in forward."""

    def choose(_: Any, __: Any, task: StepRequest) -> Plan:
        height, width = sides_of(task.side_px)
        num_px = task.batch * height * width
        if num_px > fits_px:
            raise PlanError(f"{num_px} px do not fit")
        return Plan("train", task.batch, 1, num_px, True, ("plain",), step_s=1e-6 * num_px)

    replicas = next(num // each for each in range(1, num + 1) if num % each == 0 and num // each <= batch)
    task = StepRequest(**{**vars(_TASK), "batch": -(-batch // replicas), **given})
    sent = "it looks everywhere" if given.get("across_pixels") == "all" else BordersSent(10, 1000)
    over = OverRanks(num, batch, asked, measured_link(message_s, 1e9), lambda _: sent)
    with mock.patch.object(over_ranks, "choose_train", choose):
        return choose_over_ranks(mock.Mock(), mock.Mock(), task, over)


def test_pictures_stay_whole_where_they_fit() -> None:
    assert _plan(2, 4, 1e9).spatial is None
    assert _plan(1, 1, 1e9).spatial is None


def test_more_ranks_than_samples_lay_each_picture_on_several() -> None:
    plan = _plan(4, 2, 1e9)
    assert plan.spatial == Spatial((2, 1), (256, 256), 4)
    assert plan.step_s == pytest.approx(128 * 256e-6 + 20 * 1e-5 + 2e-6)
    assert plan.why[0].startswith(
        "each picture on 2 x 1 ranks, borders exchanged: 1 sample on a rank; borders cross 20"
    )


def test_halos_are_computed_anew_where_messages_are_slow() -> None:
    plan = _plan(2, 1, 1e9, message_s=1e-3)
    assert plan.spatial == Spatial((2, 1), (256, 256), 4, (24, 24), (24, 24))
    assert plan.step_s == pytest.approx(152 * 256e-6)
    assert "1.188 times the pixels" in plan.why[0]
    assert any("borders exchanged" in each.what and "slower" in each.why for each in plan.rejected)
    exact = _plan(2, 1, 1e9, message_s=1e-3, across_samples="a batch norm")
    assert exact.spatial is not None
    assert exact.spatial.exchanges, "a norm over samples sees halos twice"
    assert any("approximate: a batch norm" in each.why for each in exact.rejected)


def test_what_does_not_fit_whole_is_laid_on_as_many_as_it_takes() -> None:
    # of 5 samples some rank would have 2 whole ones
    plan = _plan(4, 5, 1.5 * 256 * 256)
    assert plan.spatial is not None
    assert plan.spatial.num == 4
    assert plan.peak_bytes == 5 * 64 * 256
    assert any("131072 px do not fit" in each.why for each in plan.rejected)


def test_what_is_asked_for_is_done_or_refused() -> None:
    spatial = _plan(2, 2, 1e9, asked="recompute").spatial
    assert spatial is not None
    assert not spatial.exchanges
    with pytest.raises(PlanError, match="more GPUs than samples in a batch: found --gpus 3"):
        _plan(3, 2, 1e9, asked="whole")
    with pytest.raises(PlanError, match="it looks everywhere"):
        _plan(2, 2, 1e9, asked="exchange", across_pixels="all")


def test_the_largest_part_is_planned_for() -> None:
    part = part_of(
        StepRequest(**{**vars(_TASK), "side_px": (110, 64)}), Spatial((3, 1), (110, 64), 4, (8, 0), (8, 0)), 2
    )
    assert (part.batch, part.side_px) == (2, (52, 64))
