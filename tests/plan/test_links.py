"""The catalogue of links: sound in itself, with a source each, and told by near names."""

from __future__ import annotations

import pytest

from outsize.errors import PlanError
from outsize.plan.links import LINKS, Network, find_link, network_of


def test_a_link_is_found_however_it_is_spelt() -> None:
    assert find_link("InfiniBand EDR").name == "infiniband-edr"
    assert find_link("nvlink2_2").name == "nvlink2-2"


def test_an_unknown_link_is_refused_with_near_names() -> None:
    with pytest.raises(PlanError, match=r"infiniband-edr2x.*did you mean .*infiniband-edr-2") as caught:
        find_link("infiniband-edr2x")
    assert "\n" not in str(caught.value)


def test_no_link_beats_its_theory_and_each_has_a_source() -> None:
    assert len({spec.name for spec in LINKS}) == len(LINKS)
    for spec in LINKS:
        assert 0.5 * spec.theory_bytes_per_s < spec.bytes_per_s <= spec.theory_bytes_per_s, spec.name
        assert spec.source, spec.name


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    link = find_link("aries")
    assert link.seconds(0) == link.latency_s
    assert link.seconds(10e9) == pytest.approx(1 + link.latency_s)


def test_ranks_of_one_host_use_its_own_link() -> None:
    network = Network(find_link("nvlink2-2"), find_link("infiniband-edr-2"), gpus_per_host=6)
    assert network.between_ranks(0, 5).name == "nvlink2-2"
    assert network.between_ranks(5, 6).name == "infiniband-edr-2"


def test_a_host_brings_its_own_links_and_a_link_of_one_host_joins_all() -> None:
    summit = network_of("summit", 6, 1200, "infiniband-edr")
    assert (summit.inside.name, summit.between.name, summit.gpus_per_host) == (
        "nvlink2-2",
        "infiniband-edr",
        6,
    )
    single = network_of(None, 1, 8, "ethernet-25")
    assert (single.inside, single.gpus_per_host) == (single.between, 1)
    assert network_of(None, 1, 8, "nvlink3").gpus_per_host == 8
