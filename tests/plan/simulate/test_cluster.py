"""Arrangements of many GPUs: what fits is taken, and time goes where it is said to."""

from __future__ import annotations

import pytest
from tests.plan.partition.chains import plain

from outsize.errors import PlanError
from outsize.plan.links import Network, find_link
from outsize.plan.machines import find_machine
from outsize.plan.partition import Chain
from outsize.plan.simulate.cluster import Cluster, Workshare, arrange
from outsize.plan.simulate.unets import FlatUNet
from outsize.plan.times import Clock

NET = Network(find_link("nvlink2-2"), find_link("infiniband-edr-2"), gpus_per_host=6)
V100 = find_machine("v100-16")


def _cluster(num: int, room: float = float(V100.usable_bytes)) -> Cluster:
    return Cluster(num, NET, room)


def _even(batch: int) -> Chain:
    return plain([0.01 * batch] * 12, sizes=[1000 * batch] * 11, saved=1000 * batch, state=8000)


def test_what_fits_on_one_gpu_is_replicated() -> None:
    best = arrange(Workshare(1200, 6000, _even), _cluster(1200))[0]
    assert (best.num_replicas, best.num_stages, best.recomputes) == (1200, 1, False)
    assert best.efficiency > 0.97
    assert best.epoch_s == pytest.approx(5 * best.step_s)
    assert sum(best.shares.values()) == pytest.approx(1, abs=0.005)


def test_what_does_not_fit_is_cut_into_stages() -> None:
    best = arrange(Workshare(64, 640, _even), _cluster(12, room=40_000))[0]
    assert best.num_stages > 1
    assert best.peak_bytes <= 40_000
    assert best.num_stages * best.num_replicas == 12


def test_more_gpus_than_samples_become_stages_or_are_refused() -> None:
    best = arrange(Workshare(4, 64, _even), _cluster(8))[0]
    assert best.num_replicas <= 4
    with pytest.raises(PlanError, match="more GPUs than parts of a step"):
        arrange(Workshare(2, 64, _even), _cluster(97))
    with pytest.raises(PlanError, match=r"alone do not fit|no cut into"):
        arrange(Workshare(8, 64, _even), _cluster(2, room=9000))


def test_more_gpus_are_never_slower_for_an_epoch() -> None:
    times = [arrange(Workshare(96, 960, _even), _cluster(num))[0].epoch_s for num in (1, 2, 4, 8, 16, 32)]
    assert times == sorted(times, reverse=True)


def test_a_unet_of_two_billion_weights_fits_eight_gpus_of_80_gb() -> None:
    a100 = find_machine("a100-80")
    net = FlatUNet(11, 128, 5, 512, optimizer_copies=2)
    clock = Clock(a100.rates, tf32=True, overlaps=True)
    cluster = Cluster(
        8, Network(find_link("nvlink3"), find_link("infiniband-hdr-8"), 8), 0.85 * a100.usable_bytes
    )
    assert net.num_weights == pytest.approx(2.2e9, rel=0.01)
    found = arrange(Workshare(64, 6400, lambda batch: net.chain(batch, clock)), cluster)
    assert found[0].peak_bytes <= cluster.room_bytes
    assert found[0].efficiency > 0.5
