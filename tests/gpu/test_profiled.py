"""On a GPU: a profiled step accounts for its kernels, and a taught clock tells the step it was taught by."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from outsize.measure.learning import look_at, taught_by
from outsize.measure.learning.look import LEAST_USABLE, MOST_USABLE
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.machines import find_machine
from outsize.plan.seen import as_seen
from outsize.plan.times import ARITHMETIC, GRADIENTS, NORM_GRADIENTS, NORMS, OPTIMIZER, REST, Clock
from outsize.tasks.segment.terms import loss_on_shapes

_SHAPE = (4, 4, 512, 512)


def test_a_real_step_teaches_its_own_time() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    model = build_model("unet", num_classes=6, in_channels=4, width=32)
    make = partial(torch.optim.AdamW, lr=1e-4)
    facts = trace_step(model, _SHAPE, loss=loss_on_shapes("cross_entropy"), optimizer=make, device="cuda")
    model = model.to(device).to(memory_format=torch.channels_last).train()
    optimizer = make(model.parameters())
    images = torch.randn(_SHAPE, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(4, 512, 512, dtype=torch.int64, device=device)

    def run() -> None:
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seen = look_at(run, device)
    for name in (ARITHMETIC, GRADIENTS, NORMS, NORM_GRADIENTS, OPTIMIZER, REST):
        assert seen.kernels_s[name] > 0, name
    # the device has no more work than the step has time, and a step is over when the slower of both is
    assert sum(seen.kernels_s.values()) < 1.1 * seen.step_s
    assert 0.9 * sum(seen.kernels_s.values()) < seen.device_s < 1.05 * seen.step_s
    assert seen.usable_share is not None
    assert LEAST_USABLE <= seen.usable_share <= MOST_USABLE
    clock = Clock(find_machine("h200").rates, tf32=True, overlaps=True)
    learnt = taught_by(look_at(run, device), facts.ops, clock, batch=4, side_px=512)
    taught, told = clock.taught(learnt), as_seen(facts, learnt)
    paced_s = sum(clock.op_s(op) for op in told.ops if op.pace)
    print(f"seen one by one: {paced_s / sum(map(clock.op_s, told.ops)):.0%} of the time")
    assert all(op.pace for op in told.ops if "convolution" in op.kind)
    step_s = look_at(run, device).step_s
    print(
        f"by class {taught.step_s(facts.ops) / step_s:.3f}, one by one {taught.step_s(told.ops) / step_s:.3f}"
    )
    assert taught.step_s(facts.ops) == pytest.approx(step_s, rel=0.3)
    assert taught.step_s(told.ops) == pytest.approx(step_s, rel=0.15)
