"""The catalogue of machines: found by any spelling, sound in itself, and the same as its page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outsize.errors import PlanError
from outsize.plan.machines import (
    CATALOGUE,
    CONTEXT_BYTES,
    GB,
    GIB,
    TERA,
    Rates,
    find_machine,
)

_ROOT = Path(__file__).resolve().parents[2]
_NAMES = [spec.name for spec in CATALOGUE]
_H200 = find_machine("h200").rates


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("v100-16", "v100-16"),
        ("V100 16GB", "v100-16"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA H100 80GB HBM3", "h100-80"),
        ("NVIDIA H100 PCIe", "h100-80-pcie"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("3090", "rtx3090"),
        ("Tesla K80", "k80"),
        ("AC922", "ac922"),
        ("DGX Station", "dgx-station"),
        ("p3.8xlarge", "p3.8xlarge"),
    ],
)
def test_a_machine_is_found_however_it_is_spelt(written: str, name: str) -> None:
    assert find_machine(written).name == name


def test_no_two_machines_share_a_spelling() -> None:
    spellings = [(each, spec.name) for spec in CATALOGUE for each in (spec.name, *spec.aliases)]
    assert [find_machine(each).name for each, _ in spellings] == [name for _, name in spellings]


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("h20", {"h200"}),
        ("L40", {"l40s"}),  # which is another card
        ("ac92", {"ac922"}),
    ],
)
def test_an_unknown_machine_is_refused_with_its_nearest(written: str, near: set[str]) -> None:
    with pytest.raises(PlanError) as caught:
        find_machine(written)
    message = str(caught.value)
    assert message.startswith(f"unknown machine: found {written!r}, needed one of k80, p100-16,")
    hint = message.rpartition("did you mean ")[2].rstrip("?")
    assert near <= set(hint.split(" or "))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("v100", ["v100-16 (Tesla V100 16 GB)", "v100-32 (Tesla V100 32 GB)"]),
        ("NVIDIA A100", ["a100-40 (A100 40 GB)", "a100-80 (A100 80 GB)"]),
        ("h100", ["h100-80 (H100 SXM 80 GB)", "h100-80-pcie (H100 PCIe 80 GB)"]),
    ],
)
def test_the_beginning_of_several_names_is_none_of_them(written: str, meant: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        find_machine(written)
    needed = f"found {written!r}, needed one of {', '.join(meant)}; name one of them"
    assert str(caught.value) == f"several machines begin with that name: {needed}"


@pytest.mark.parametrize("written", ["", "NVIDIA", "zzz"])
def test_a_machine_like_none_is_refused_without_a_guess(written: str) -> None:
    with pytest.raises(
        PlanError, match=rf"unknown machine: found '{written}'.*; take one with about the same memory"
    ):
        find_machine(written)


@pytest.mark.parametrize("name", _NAMES)
def test_numbers_are_sound(name: str) -> None:
    spec = find_machine(name)
    rates = spec.rates
    assert 0.9 * spec.memory_bytes < spec.visible_bytes <= spec.memory_bytes
    assert spec.usable_bytes == spec.visible_bytes - CONTEXT_BYTES
    assert TERA < rates.fp32_flops_per_s < 100 * TERA
    assert 100 * GB < rates.memory_bytes_per_s < 10_000 * GB
    assert rates.origin == "published"
    assert len(spec.source) > 10
    assert len(spec.link_source) > 10
    assert rates.to_device_bytes_per_s is not None
    assert rates.crowded_bytes_per_s is None or rates.crowded_bytes_per_s < rates.to_device_bytes_per_s
    if rates.tf32_flops_per_s is not None:
        # tensor cores do twice as many operations on half as many bits: a rate told with sparsity would be twice that
        assert rates.bf16_flops_per_s == pytest.approx(2 * rates.tf32_flops_per_s, rel=0.03)
        assert rates.fp16_flops_per_s == rates.bf16_flops_per_s


def test_a_few_numbers_by_heart() -> None:
    assert find_machine("v100-16").visible_bytes == int(15.77 * GIB)
    assert find_machine("a100-80").rates.memory_bytes_per_s == 2039 * GB
    assert find_machine("a100-40").rates.bf16_flops_per_s == 312 * TERA
    assert _H200.tf32_flops_per_s == 494 * TERA
    assert find_machine("ac922").rates.crowded_bytes_per_s == 39.25 * GB
    assert find_machine("p3.8xlarge").rates.crowded_bytes_per_s == 6.42 * GB


def test_a_host_is_shared_by_the_gpus_that_are_used() -> None:
    spec = find_machine("ac922")
    one, four, eight = (spec.as_machine(num_gpus) for num_gpus in (1, 4, 8))
    assert (one.num_cores, four.num_cores) == (32, 8)
    assert four.host_free_bytes == pytest.approx(one.host_free_bytes / 4, abs=1)
    assert one.host_free_bytes == int(0.9 * 512 * GIB)
    assert eight == four  # two such hosts
    assert one.device.startswith("cuda")
    assert one.free_bytes == spec.usable_bytes < one.memory_bytes == spec.visible_bytes
    assert "V100" in one.name
    assert "AC922" in one.name


def test_more_gpus_than_a_host_has_are_told() -> None:
    spec = find_machine("ac922")
    assert spec.beyond_host(4) is None
    assert spec.beyond_host(5) == "5 GPUs are more than one IBM AC922 has (4 GPUs): this is for 2 of them"
    assert "(1 GPU): this is for 3 of them" in str(find_machine("gh200").beyond_host(3))
    assert find_machine("l4").beyond_host(100) is None  # no host is named


def test_of_a_card_alone_no_host_is_made_up() -> None:
    machine = find_machine("l4").as_machine(2)
    assert (machine.num_cores, machine.host_free_bytes) == (0, 0)
    assert machine == find_machine("l4").as_machine()


def test_no_gpus_are_no_machine() -> None:
    with pytest.raises(PlanError, match=r"no such number of GPUs: found 0, needed 1 or more; correct --gpus"):
        find_machine("l4").as_machine(0)


def test_a_precision_without_units_runs_as_float32() -> None:
    rates = find_machine("v100-16").rates
    assert rates.bf16_flops_per_s is None
    assert rates.flops_per_s("bf16") == rates.flops_per_s("tf32") == rates.fp32_flops_per_s == 15.7 * TERA
    assert rates.flops_per_s("fp16") == 125 * TERA
    assert Rates(**rates.as_dict()) == rates


def test_the_page_of_machines_is_true() -> None:
    written = subprocess.run(
        [sys.executable, str(_ROOT / "docs/machines_page.py")], capture_output=True, text=True, check=True
    )
    assert (_ROOT / "docs/machines.md").read_text(encoding="utf-8") == written.stdout
    assert all(f"| `{name}` |" in written.stdout for name in _NAMES)
