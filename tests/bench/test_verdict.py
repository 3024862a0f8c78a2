"""The verdict of a profile: right in each of the provoked cases, and quiet where the device computes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outsize.bench.verdict import COMPUTE_BOUND, Around, Parts, judge

_BUSY = Parts(step_s=0.1, compute_s=0.1)
_AROUND = Around("GPU", batch=8, workers=2, cores=16, making_s=0.1, making_cpu_s=0.1, twice_s=0.2)


def _waiting(share: float) -> Parts:
    return Parts(step_s=0.1, waiting_s=0.1 * share, compute_s=0.1 * (1 - share))


def test_compute_bound() -> None:
    found = judge(_BUSY, _AROUND)
    assert (found.cause, found.gain) == (COMPUTE_BOUND, 0.0)
    assert "computes for 100% of the step" in found.sentence
    # what is not worth a word changes nothing
    assert judge(_waiting(0.05), _AROUND).cause == COMPUTE_BOUND


def test_too_few_workers() -> None:
    found = judge(_waiting(0.41), replace(_AROUND, making_s=0.3, making_cpu_s=0.28))
    assert found.cause == "too few workers"
    assert found.sentence == (
        "the GPU waits 41% of the step for data: raise train.workers from 2 to 6; time per sample -41% predicted"
    )
    assert found.gain == pytest.approx(0.41)


def test_workers_are_no_more_than_cores_and_the_gain_is_what_those_can_do() -> None:
    parts = Parts(step_s=0.4, waiting_s=0.35, compute_s=0.05)
    found = judge(parts, replace(_AROUND, making_s=0.4, making_cpu_s=0.4, workers=1, cores=4))
    assert "from 1 to 4" in found.change
    assert found.gain == pytest.approx(0.75)


def test_slow_reader() -> None:
    found = judge(_waiting(0.6), replace(_AROUND, making_s=0.3, making_cpu_s=0.03))
    assert found.cause == "slow reader"
    assert "waits 90% of its time for files" in found.sentence
    assert found.gain == pytest.approx(0.6)


def test_all_cores_prepare() -> None:
    found = judge(_waiting(0.5), replace(_AROUND, making_s=0.3, making_cpu_s=0.3, workers=4, cores=4))
    assert found.cause == "slow preparation"
    assert "all 4 cores are busy" in found.sentence


def test_workers_share_the_cores_of_a_cpu_with_the_step() -> None:
    """Two cores: a batch takes one for 80 ms, a step both for 60 ms; another worker has no core to itself."""
    parts = Parts(step_s=0.12, waiting_s=0.06, compute_s=0.06)
    around = Around("CPU", batch=8, workers=1, cores=2, making_s=0.12, making_cpu_s=0.08, cores_s=0.2)
    found = judge(parts, around)
    assert found.cause == "too few workers"
    assert found.gain == pytest.approx(1 - 0.1 / 0.12)  # not a half, as where the step left the cores alone
    found = judge(parts, replace(around, cores_s=0.23))
    assert found.cause == "slow preparation"
    assert judge(parts, replace(around, cores=8)).gain == pytest.approx(0.5)


def test_batch_too_small() -> None:
    found = judge(_BUSY, replace(_AROUND, twice_s=0.12))
    assert found.cause == "batch too small"
    assert "train.batch from 8 to 16" in found.change
    assert found.gain == pytest.approx(0.4)
    assert judge(_BUSY, replace(_AROUND, twice_s=None)).cause == COMPUTE_BOUND


def test_slow_link() -> None:
    parts = Parts(step_s=0.1, copying_s=0.03, compute_s=0.07)
    found = judge(parts, replace(_AROUND, link_share=0.3))
    assert found.cause == "slow link"
    assert "30% of the step for copies, which run at 30% of what the link can do" in found.sentence
    assert "what else uses the link" in found.change
    assert "send less" in judge(parts, replace(_AROUND, link_share=0.9)).change


@pytest.mark.parametrize(
    ("changes", "change", "gain"),
    [
        ({"records": True, "twice_s": 0.11}, "train.graph = true", 0.5),
        ({"twice_s": 0.11}, "raise train.batch from 8 to 16", 0.45),
        ({"twice_s": None}, "fewer and larger operations", 0.5),
    ],
)
def test_launch_bound(changes: dict[str, float], change: str, gain: float) -> None:
    parts = Parts(step_s=0.1, compute_s=0.05, gap_s=0.05)
    found = judge(parts, replace(_AROUND, **changes))
    assert found.cause == "launch-bound"
    assert change in found.change
    assert found.gain == pytest.approx(gain)


def test_swap_stall() -> None:
    found = judge(Parts(step_s=0.1, compute_s=0.07, stall_s=0.03), _AROUND)
    assert found.cause == "swap stall"
    assert "30% of the step for swapped tensors" in found.sentence
    assert "limits.gpu_memory" in found.change


def test_communication() -> None:
    found = judge(Parts(step_s=0.1, compute_s=0.07, communication_s=0.03), _AROUND)
    assert found.cause == "communication"


def test_the_largest_gain_is_the_verdict() -> None:
    parts = Parts(step_s=0.1, waiting_s=0.02, compute_s=0.04, stall_s=0.04)
    assert judge(parts, replace(_AROUND, making_s=0.2, making_cpu_s=0.2)).cause == "swap stall"
    assert sum(parts.shares().values()) == pytest.approx(1.0)
