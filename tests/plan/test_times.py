"""Times of operations and steps: kernels by their rates and kinds, the host by its calls, and the slower of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outsize.plan import times
from outsize.plan.machines import CATALOGUE, find_machine
from outsize.plan.step import StepOp
from outsize.plan.times import (
    ARITHMETIC,
    BACKWARD,
    CLASSES,
    FORWARD,
    GRADIENTS,
    KERNEL_S,
    MEMORY,
    NORM_GRADIENTS,
    NORMS,
    OPTIMIZER,
    PASSES,
    REST,
    Clock,
    Learnt,
    class_of,
    host_calls,
    op_seconds,
    together,
)

_H200 = find_machine("h200").rates
_CLOCK = Clock(_H200, tf32=True, overlaps=True)


def _op(
    kind: str = "convolution",
    *,
    flops: int = 0,
    moved_bytes: int = 48 * 10**8,
    dtype: str = "float32",
    backward: bool = False,
) -> StepOp:
    return StepOp(0, kind, "net.0", 0, backward, (0,), (1,), flops, moved_bytes, dtype)


def test_arithmetic_takes_a_share_of_the_peak_of_its_precision() -> None:
    def seconds(dtype: str, *, tf32: bool, backward: bool = False) -> float:
        kind = "convolution_backward" if backward else "convolution"
        op = _op(kind, flops=10**12, moved_bytes=1, dtype=dtype, backward=backward)
        return op_seconds(op, _H200, tf32=tf32)

    assert seconds("float32", tf32=False) == pytest.approx(1 / (67 * FORWARD["fp32"]), rel=1e-3)
    assert seconds("float32", tf32=True) == pytest.approx(1 / (494 * FORWARD["tf32"]) + KERNEL_S, rel=1e-3)
    assert seconds("bfloat16", tf32=True) == pytest.approx(1 / (989 * FORWARD["bf16"]) + KERNEL_S, rel=1e-3)
    back_s = seconds("bfloat16", tf32=True, backward=True)
    assert back_s == pytest.approx(1 / (989 * BACKWARD["bf16"]) + 4 * KERNEL_S, rel=1e-3)


def test_products_of_float32_are_not_rounded_to_tf32() -> None:
    conv, product = (_op(kind, flops=10**12, moved_bytes=1) for kind in ("convolution", "bmm"))
    assert op_seconds(product, _H200, tf32=True) == op_seconds(product, _H200, tf32=False)
    assert op_seconds(product, _H200, tf32=True) > 5 * op_seconds(conv, _H200, tf32=True)


def test_memory_is_gone_over_as_often_as_the_kind_needs() -> None:
    once_s = 1e-3 / MEMORY
    assert op_seconds(_op("relu_"), _H200, tf32=True) == pytest.approx(once_s + KERNEL_S)
    for kind, (single, half) in PASSES.items():
        assert op_seconds(_op(kind), _H200, tf32=True) == pytest.approx(single * once_s + KERNEL_S)
        narrow = _op(kind, dtype="bfloat16")
        assert op_seconds(narrow, _H200, tf32=True) == pytest.approx(half * once_s + KERNEL_S)
    norm = _op("native_batch_norm", dtype="bfloat16")
    assert op_seconds(norm, _H200, tf32=True, training=False) < op_seconds(norm, _H200, tf32=True) / 2


def test_a_convolution_loads_and_multiplies_and_a_thin_one_loads_badly() -> None:
    many, few = _op(flops=10**12), _op(flops=10**9)
    loads_s = op_seconds(many, _H200, tf32=True) - op_seconds(replace(many, moved_bytes=1), _H200, tf32=True)
    assert loads_s == pytest.approx(1e-3 / MEMORY)
    assert op_seconds(few, _H200, tf32=True) > 2.5 * loads_s


def test_a_view_takes_no_time() -> None:
    view = _op("slice", moved_bytes=0)
    assert op_seconds(view, _H200, tf32=True) == 0.0
    assert host_calls(view) == 0.0


def test_of_a_measured_rate_more_is_reached() -> None:
    measured = replace(_H200, origin="measured")
    for op in (_op(flops=10**13, moved_bytes=1), _op("relu_")):
        ratio = op_seconds(op, measured, tf32=True) / op_seconds(op, _H200, tf32=True)
        assert ratio == pytest.approx(times.MEASURED["arithmetic" if op.flops else "memory"], rel=1e-2)


@pytest.mark.parametrize("name", [spec.name for spec in CATALOGUE])
def test_no_machine_is_faster_than_its_data_sheet(name: str) -> None:
    rates = find_machine(name).rates
    for dtype in ("float32", "float16", "bfloat16"):
        heavy = _op(flops=10**13, moved_bytes=10**6, dtype=dtype)
        most = max(rates.flops_per_s(each) for each in ("fp32", "tf32", "fp16", "bf16"))
        assert op_seconds(heavy, rates, tf32=rates.tf32_flops_per_s is not None) > 10**13 / most
        light = _op("add", dtype=dtype)
        assert op_seconds(light, rates, tf32=False) > light.moved_bytes / rates.memory_bytes_per_s


@pytest.mark.parametrize(
    ("kind", "backward", "found"),
    [
        ("convolution", False, ARITHMETIC),
        ("cudnn_convolution_transpose", False, ARITHMETIC),
        ("convolution_backward", True, GRADIENTS),
        ("convolution", True, ARITHMETIC),  # of a block that is run again
        ("fused_norm", True, NORMS),
        ("FusedNormBackward", True, NORM_GRADIENTS),  # as the profiler calls it
        ("_scaled_dot_product_flash_attention", True, ARITHMETIC),
        ("addmm", False, ARITHMETIC),
        ("mm", True, GRADIENTS),
        ("native_batch_norm", False, NORMS),
        ("cudnn_batch_norm_backward", True, NORM_GRADIENTS),
        ("_foreach_norm", False, OPTIMIZER),
        ("_fused_adamw_", False, OPTIMIZER),
        ("relu_", False, REST),
        ("threshold_backward", True, REST),
    ],
)
def test_names_of_traced_and_of_profiled_operations_fall_into_the_same_classes(
    kind: str, backward: bool, found: str
) -> None:
    assert class_of(kind, backward=backward) == found


def test_a_step_takes_as_long_as_the_slower_of_host_and_device() -> None:
    small = [_op("relu_", moved_bytes=1000)] * 1000
    assert _CLOCK.step_s(small) == pytest.approx(1000 * _H200.host_op_s)
    large = [_op("relu_")] * 100
    assert _CLOCK.step_s(large) == pytest.approx(100 * op_seconds(large[0], _H200, tf32=True))
    assert _CLOCK.step_s(small, num_calls=500) == pytest.approx(1500 * _H200.host_op_s)
    on_cpu = replace(_CLOCK, overlaps=False)
    assert on_cpu.step_s(small) > _CLOCK.step_s(small)
    assert together(2.0, 3.0, overlaps=True) == 3.0
    assert together(2.0, 3.0, overlaps=False) == 5.0


def test_what_was_learnt_replaces_what_is_modelled() -> None:
    ops = [_op("relu_"), _op(flops=10**12), _op("native_batch_norm")]
    learnt = Learnt({REST: 2.0, ARITHMETIC: 0.5}, 1e-4, 0.9, 4, 512)
    clock, before = _CLOCK.taught(learnt), _CLOCK.by_class(ops)
    after = clock.by_class(ops)
    assert set(before) == set(CLASSES)
    assert after[REST] == pytest.approx(2 * before[REST])
    assert after[ARITHMETIC] == pytest.approx(before[ARITHMETIC] / 2)
    assert after[NORMS] == before[NORMS]
    assert clock.step_s([_op("relu_", moved_bytes=1)] * 10) == pytest.approx(10 * 1e-4)
    assert _CLOCK.rates.host_op_s == _H200.host_op_s


def test_a_norm_that_is_made_again_has_its_statistics() -> None:
    norm, relu = _op("native_batch_norm", dtype="bfloat16"), _op("relu_", dtype="bfloat16")
    assert _CLOCK.again_s(norm) == pytest.approx(_CLOCK.op_s(relu))
    assert _CLOCK.again_s(relu) == _CLOCK.op_s(relu)


def test_a_bias_and_few_bands_cost_time_of_their_own() -> None:
    rates = find_machine("h200").rates
    plain = StepOp(0, "convolution", "", 0, False, (0,), (1,), 10**11, 10**8, "bfloat16", depth=64)
    seconds = {
        name: op_seconds(replace(plain, **changes), rates, tf32=True)
        for name, changes in {
            "plain": {},
            "biased": {"biased_bytes": 5 * 10**7},
            "of 3 bands": {"depth": 3},
            "not known": {"depth": 0},
            "summed": {"biased_bytes": 5 * 10**7, "backward": True},
            "backward": {"backward": True},
        }.items()
    }
    assert seconds["plain"] == seconds["not known"]
    # a kernel that takes numbers one by one: a quarter of what memory could
    assert 3 < (seconds["biased"] - seconds["plain"]) / (5 * 10**7 / rates.memory_bytes_per_s) < 8
    assert seconds["summed"] > seconds["backward"]
    assert seconds["of 3 bands"] > 5 * seconds["plain"]


def test_a_tensor_that_has_to_be_watched_costs_the_host_more() -> None:
    norm, relu, gelu = (
        StepOp(0, kind, "m", 0, False, (0,), (1,), 0, 1024, "float32")
        for kind in ("native_batch_norm", "relu_", "gelu")
    )
    assert times.remade_calls([norm, relu]) == times.REMADE_CALLS + 2
    assert times.remade_calls([gelu]) == times.WATCHED_CALLS + 1
    assert times.remade_calls([norm, gelu]) == times.WATCHED_CALLS + 2
