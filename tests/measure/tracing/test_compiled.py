"""What compiled blocks keep, measured: equal to what hooks see, and growing with the pixels."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from outsize.measure.tracing.compiled import compiled_saved_bytes
from outsize.measure.tracing.record import record
from outsize.models import build_model
from outsize.plan.plan import Compile
from outsize.plan.step import StepFacts
from outsize.plan.ways.compiled import CompiledSaved, blocks_to_compile, with_compiled
from outsize.strategies.compiled import compiled

NUM_PX = 2 * 16 * 16


def _unet() -> nn.Module:
    torch.manual_seed(2)
    return build_model("unet", num_classes=3, in_channels=4, levels=2, width=8)


def _images(num_samples: int = 2, side_px: int = 16) -> Tensor:
    return torch.randn(num_samples, 4, side_px, side_px)


def _record(model: nn.Module, images: Tensor) -> StepFacts:
    return record(lambda: model(images).square().sum().backward(), model, given=(images,))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], dict[str, CompiledSaved]]:
    """What compiled blocks keep, by samples and side."""
    monkeypatch.setattr("outsize.strategies.compiled.BACKEND", "aot_eager")
    model = _unet()
    paths = blocks_to_compile(_record(model, _images()))
    forward = compiled(model, Compile(paths), nullcontext)
    found = {}
    for num_samples, side_px in ((2, 16), (4, 16), (2, 24)):
        images = _images(num_samples, side_px)

        def run(images: Tensor = images) -> None:
            with forward():
                loss = model(images).square().sum()
            loss.backward()

        num_px = num_samples * side_px**2
        found[num_samples, side_px] = compiled_saved_bytes(run, model, paths, num_px=num_px)
        assert compiled_saved_bytes(run, model, paths, num_px=num_px) == found[num_samples, side_px]
    return found


def test_blocks_keep_what_hooks_see(measured: dict[tuple[int, int], dict[str, CompiledSaved]]) -> None:
    # a block is conv, norm, relu, conv, norm, relu: it keeps what goes into both norms and out of the first relu;
    # what goes into a decoder's first norm comes from outside
    side_px = {"encoder.0": 16, "bottleneck": 8, "decoder.0": 16}
    width = {"encoder.0": 8, "bottleneck": 16, "decoder.0": 8}
    kept = measured[2, 16]
    assert kept.keys() == side_px.keys()
    for path, each in kept.items():
        activation_bytes = 2 * width[path] * side_px[path] ** 2 * 4
        assert round(each.bytes_per_px * NUM_PX) == (2 if path == "decoder.0" else 3) * activation_bytes, path
        assert 0 < each.fixed_bytes <= 16 * 512, path


def test_they_grow_with_samples_and_pixels(measured: dict[tuple[int, int], dict[str, CompiledSaved]]) -> None:
    for path, each in measured[2, 16].items():
        for (num_samples, side_px), others in measured.items():
            num_px = num_samples * side_px**2
            assert each.at(num_px) == others[path].at(num_px), (path, num_samples, side_px)


def test_blocks_that_are_not_compiled_keep_what_was_recorded() -> None:
    model, images = _unet(), _images()
    facts = _record(model, images)
    paths = blocks_to_compile(facts)
    kept = compiled_saved_bytes(lambda: model(images).square().sum().backward(), model, paths, num_px=NUM_PX)
    assert all(each.at(NUM_PX) for each in kept.values())
    saved = {each.storage for each in facts.saved}
    changed = with_compiled(facts, kept, NUM_PX)
    assert [changed.storages[each] for each in saved] == [facts.storages[each] for each in saved]


def test_copies_of_weights_do_not_grow() -> None:
    model, images = _unet(), _images()

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(images).float().square().sum()
        loss.backward()

    kept = compiled_saved_bytes(run, model, ("bottleneck",), num_px=NUM_PX)["bottleneck"]
    weights_bytes = sum(
        2 * each.numel() for each in model.get_submodule("bottleneck").parameters() if each.dim() > 1
    )
    assert kept.fixed_bytes > weights_bytes
    assert round(kept.bytes_per_px * NUM_PX) == 3 * 2 * 16 * 8 * 8 * 2  # bfloat16


def test_the_hooks_are_gone_afterwards() -> None:
    model, images = _unet(), _images()
    with pytest.raises(RuntimeError, match="stop"):
        compiled_saved_bytes(_stop, model, ("bottleneck",), num_px=1)
    compiled_saved_bytes(lambda: model(images), model, ("bottleneck",), num_px=1)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def _stop() -> None:
    raise RuntimeError("stop")
