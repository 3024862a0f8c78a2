"""Predicts the memory and time of compiled steps from one smaller step of the same network, for plan_error.py."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import torch
from plan_error_measured import Case, make_ready
from plan_error_predicted import Way, facts_of, parts_of
from torch import nn

from outsize.measure.learning import device_and_host_s, look_at, taught_by
from outsize.measure.memory import rise_bytes
from outsize.plan.cost import NOTHING, StepCost
from outsize.plan.plan import Compile
from outsize.plan.step import StepFacts
from outsize.plan.times import Clock, Learnt
from outsize.plan.way import Compiled
from outsize.plan.ways.compiled import blocks_to_compile

BUDGETS: dict[str, float | None] = {"compiled": None, "halved": 0.5}
NAMES: dict[str, str] = {"compiled": "compiled", "halved": "compiled, half"}


def fill_cache(
    kind: str,
    networks: Iterable[str],
    precisions: Iterable[str],
    *,
    at_once: int,
    seconds: float,
    others: Iterable[str] = (),
) -> None:
    """Run all rows in several processes at once first: what they compile is in the compiler's cache then.

    What they measure beside one another is worth nothing, and is thrown away.
    """
    threads = str(max(1, len(os.sched_getaffinity(0)) // at_once))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as several:

        def run(number: int, network: str, precision: str) -> None:
            which = ["--only", kind, "--networks", network, "--precisions", precision]
            where = ["--out", str(Path(folder, str(number))), "--seconds", str(seconds)]
            subprocess.run(
                [sys.executable, str(Path(__file__).with_name("plan_error.py")), *which, *where, *others],
                env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )

        for number, (network, precision) in enumerate(product(networks, precisions)):
            several.submit(run, number, network, precision)


def smaller(case: Case) -> Case:
    """Return the case that is tried: half the batch, as a whole one may not fit plainly."""
    return replace(case, batch=max(1, case.batch // 2))


@dataclass
class OfOneStep:
    """Predicts by half the batch of the first size that it is asked for: blocks are compiled once for all sizes."""

    kind: str  # of BUDGETS
    clock: Clock
    facts_of: Callable[..., StepFacts] = facts_of
    _tried: dict[tuple[str, bool], tuple[Compiled, Learnt]] = field(default_factory=dict)

    def predict(self, model: nn.Module, case: Case, *, device: torch.device) -> list[Way]:
        """Predict one way: blocks compiled, with a budget or without."""
        facts = self.facts_of(model, case, device=device)
        key = case.network.name, case.bf16
        if key not in self._tried:
            self._tried[key] = self._try(model, smaller(case), device)
        found, learnt = self._tried[key]
        cost = StepCost(facts)
        way = Way(
            NAMES[self.kind],
            {"compile": found.setting},
            replace(parts_of(cost, NOTHING), peak_bytes=found.peak_bytes(cost)),
            facts.ops,
            time_share=found.time_share,
            host_s=found.host_s,
            learnt=learnt,
        )
        return [way]

    def _try(self, model: nn.Module, case: Case, device: torch.device) -> tuple[Compiled, Learnt]:
        """Run a smaller step plainly and compiled, as the planner does with a few samples."""
        facts = self.facts_of(model, case, device=device)
        setting = Compile(blocks_to_compile(facts), BUDGETS[self.kind])
        model.to(device)
        plain = make_ready(model, case, {}, device)
        plain_s, _ = device_and_host_s(plain.run, device)
        plain_bytes = rise_bytes(plain.run, device)
        clock = replace(self.clock, training=True)
        learnt = taught_by(
            look_at(plain.run, device), facts.ops, clock, batch=case.batch, side_px=case.side_px
        )
        ready = make_ready(model, case, {"compile": setting}, device)
        seconds, host_s = device_and_host_s(ready.run, device)
        compiled_bytes = rise_bytes(ready.run, device)
        assert plain_bytes is not None  # compiled steps are measured on a GPU alone
        assert compiled_bytes is not None
        found = Compiled(setting, seconds / plain_s, host_s, compiled_bytes / plain_bytes)
        del plain, ready
        model.zero_grad(set_to_none=True)
        model.to("cpu")
        gc.collect()
        torch.cuda.empty_cache()
        return found, learnt
