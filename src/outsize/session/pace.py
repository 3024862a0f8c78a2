"""How fast a training goes, told every few steps: samples in a second, and the share of waiting for data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_STEPS = 10  # reading a loss makes a GPU wait, so not every step


class StepPace:
    """Adds up the times of steps, and tells of them each tenth step."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._num, self._step_s, self._wait_s = 0, 0.0, 0.0
        self._best = -math.inf

    def judged(self, score: float) -> dict[str, float]:
        """Return the score of an epoch, and the best so far."""
        self._best = max(self._best, score)
        return {"score": score, "best": self._best}

    def told(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Return the loss of a step and the pace since the last one told; nothing between."""
        self._num += 1
        self._step_s += record["step_s"]
        self._wait_s += record["wait_s"]
        if record["step"] % _STEPS:
            return {}
        facts = {"loss": float(sum(record["terms"].values()))}
        if self._step_s > 0:
            facts["samples_per_s"] = round(self._num * self._batch / self._step_s, 3)
            facts["waiting_share"] = round(min(1.0, self._wait_s / self._step_s), 4)
        self._num, self._step_s, self._wait_s = 0, 0.0, 0.0
        return facts
