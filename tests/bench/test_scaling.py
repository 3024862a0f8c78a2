"""What is lost by ranks adds up, and every way is really run on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.ranks.gang import Gang

from outsize.bench import scaling
from outsize.bench.scaling import ToScale, as_row, rounds_of
from outsize.job import TrainSection
from outsize.models import build_model
from outsize.ranks import World

_LOST = ("lost_beside_s", "lost_straggling_s", "lost_communication_s", "lost_norm_s")
_SECONDS = {
    "alone": [[1.0, 0.0]],
    "apart": [[1.1, 1.3]],
    "summed": [[1.4, 1.5]],
    "whole": [[1.6, 1.55]],
    "input": [[0.5, 2.0]],
}


@pytest.mark.parametrize(("regime", "best_s", "batch"), [("weak", 1.0, 8), ("strong", 0.5, 4)])
def test_what_is_lost_adds_up_to_the_step(regime: str, best_s: float, batch: int) -> None:
    row = as_row(regime, 2, 4, _SECONDS)
    assert row["batch"] == batch
    assert row["efficiency"]["median"] == pytest.approx(best_s / 1.6)
    assert row["samples_per_s"]["median"] == pytest.approx(batch / 1.6)
    assert best_s + sum(row[name]["median"] for name in _LOST) == pytest.approx(row["step_s"]["median"])
    found = [row[name]["median"] for name in (*_LOST, "lost_input_s")]
    assert found == pytest.approx([1.2 - best_s, 0.1, 0.2, 0.1, 0.4])


class _Samples:
    samples_per_cover = 8
    sample_bytes = 1

    def sample(self, epoch: int, index: int) -> int:
        return index

    def share_memory(self, num_processes: int, limit_bytes: int = 0) -> None:
        return None


def _rounds(world: World) -> dict[str, Any]:
    scaling.TURN_S = 0.0
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=2, levels=2, width=4)
    section = TrainSection(batch=4, tile_px=32)
    given = ToScale("segment", model, section, 2, 3, _Samples(), "cpu", bf16=False, rounds=2, max_s=60.0)  # type: ignore[arg-type]
    return rounds_of(world, given, 2)


def test_every_rank_takes_every_turn(gang: Gang) -> None:
    first, second = gang.run(2, _rounds)
    assert first == second, "all know of all"
    assert {name: len(rounds) for name, rounds in first.items()} == dict.fromkeys(_SECONDS, 2)
    for name, rounds in first.items():
        for one, other in rounds:
            assert one > 0
            assert (other == 0) == (name == "alone")
