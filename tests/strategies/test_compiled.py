"""Blocks compiled each by itself: the same training, compiled once, and a model that stays as it was."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.registry import lookup_backend

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.errors import PlanError
from outsize.models import build_model
from outsize.plan.plan import Compile, Plan, Recompute
from outsize.strategies.compiled import compiled
from outsize.strategies.compose import compose
from outsize.strategies.saved.hooks import SavedTensors, recomputable

_PLAN = Plan(purpose="train", batch=4, limit_bytes=1, peak_bytes=1, exact=False, why=())
_BLOCKS = ("encoder.0", "encoder.1", "bottleneck", "decoder.0", "decoder.1")
_SIZES = (4, 4, 3, 4, 3)  # samples of each step: the odd last batch comes twice


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Compile to torch's own operations, and list what was compiled."""
    made: list[object] = []
    backend = lookup_backend("aot_eager")

    def note(graph: Any, examples: Any) -> Any:
        made.append(graph)
        return backend(graph, examples)

    monkeypatch.setattr("outsize.strategies.compiled.BACKEND", note)
    return made


def _unet(**options: Any) -> nn.Module:
    torch.manual_seed(2)
    options = {"num_classes": 3, "in_channels": 4, "levels": 3, "width": 4, **options}
    return build_model("unet", **options)


def _batch(num_samples: int, seed: int, dtype: torch.dtype, side_px: int = 16) -> Batch:
    images = torch.randn(
        (num_samples, 4, side_px, side_px), generator=torch.Generator().manual_seed(seed), dtype=dtype
    )
    return Batch(
        images=images.contiguous(memory_format=torch.channels_last),
        valid=torch.ones(num_samples, side_px, side_px, dtype=torch.bool),
        targets=ClassRasters(torch.zeros(num_samples, side_px, side_px, dtype=torch.uint8)),
        totals={"square": float(num_samples * side_px**2)},
    )


def _square(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"square": model(batch.images).to(batch.images.dtype).square().sum()}


def _train(
    model: nn.Module, plan: Plan, *, sizes: Sequence[int] = _SIZES, bf16: bool = False, side_px: int = 16
) -> list[Tensor]:
    """Return the loss and all gradients of each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    step = compose(model, _square, plan, bf16=bf16)
    dtype = next(model.parameters()).dtype
    found = []
    for number, num_samples in enumerate(sizes):
        torch.manual_seed(number)
        optimizer.zero_grad()
        found.append(step(_batch(num_samples, number, dtype, side_px), last=True)["square"])
        found += [each.grad.clone() for each in model.parameters() if each.grad is not None]
        optimizer.step()
    return found


def _difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    pairs = list(zip(ours, theirs, strict=True))
    return max(float((a - b).abs().max()) / max(1.0, float(b.abs().max())) for a, b in pairs)


def _states(model: nn.Module) -> list[Tensor]:
    return [each.double() for each in model.state_dict().values()]


def _outside() -> Recompute:
    """Name what cheap operations outside of the blocks make: pooled pixels, concatenations."""
    model = _unet()
    images = _batch(4, 0, torch.float32).images
    with compiled(model, Compile(_BLOCKS), nullcontext)():
        keys = recomputable(model, lambda: model(images).square().sum())
    assert keys
    return Recompute(saved=tuple(sorted(keys)))


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "alone": dict,
    "recompute": lambda: {"recompute": _outside()},
    "all": lambda: {
        "micro_batches": 2,
        "recompute": replace(_outside(), blocks=("encoder.0", "bottleneck")),
    },
}


@pytest.mark.parametrize(
    "name", [each if each == "all" else pytest.param(each, marks=pytest.mark.long) for each in SETTINGS]
)
def test_training_is_the_same(name: str, graphs: list[object]) -> None:
    plain, ours = _unet().double(), _unet().double()
    settings = SETTINGS[name]()
    parts = {key: value for key, value in settings.items() if key == "micro_batches"}
    expected = _train(plain, replace(_PLAN, **parts))
    names, before = list(ours.state_dict()), len(graphs)
    found = _train(ours, replace(_PLAN, compile=Compile(_BLOCKS), **settings))
    assert _difference(found, expected) < 1e-12
    assert _difference(_states(ours), _states(plain)) < 1e-12
    # once for each size, hooks and second runs or not: samples are 4 and 3, or 2 and 1 in micro-batches
    assert len(graphs) - before == 2 * len(_BLOCKS)
    assert list(ours.state_dict()) == names
    assert not any("forward" in vars(module) for module in ours.modules())


@pytest.mark.long
def test_training_of_an_encoder_from_elsewhere_is_the_same(graphs: list[object]) -> None:
    torch.manual_seed(2)
    plain = build_model("smp:Unet/resnet18", num_classes=2, in_channels=4).double()
    ours = copy.deepcopy(plain)
    blocks = ("encoder.layer1.0", "encoder.layer2.0", "decoder.blocks.4")
    # 64 px: of 32 a norm would see two numbers, and make of a rounding whatever it likes
    expected = _train(plain, _PLAN, sizes=[2] * 2, side_px=64)
    found = _train(ours, replace(_PLAN, compile=Compile(blocks)), sizes=[2] * 2, side_px=64)
    assert _difference(found, expected) < 1e-12
    assert _difference(_states(ours), _states(plain)) < 1e-12
    assert len(graphs) == len(blocks)


@pytest.mark.long  # a minute of a C++ compiler, where nothing is kept of an earlier run
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_training_is_the_same_in_machine_code() -> None:
    plain, ours = _unet(levels=2, convs=1), _unet(levels=2, convs=1)
    expected = _train(plain, _PLAN, sizes=[2] * 5)
    found = _train(ours, replace(_PLAN, compile=Compile(("decoder.0",))), sizes=[2] * 5)
    assert _difference(found, expected) < 1e-5
    assert _difference(_states(ours), _states(plain)) < 1e-5


def test_narrow_numbers_and_the_order_in_memory_are_kept(graphs: list[object]) -> None:
    plain, ours = (_unet().to(memory_format=torch.channels_last) for _ in range(2))
    seen: list[tuple[torch.dtype, bool]] = []

    def look(_: nn.Module, __: Any, output: Tensor) -> None:
        seen.append((output.dtype, output.is_contiguous(memory_format=torch.channels_last)))

    for path in _BLOCKS:
        ours.get_submodule(path).register_forward_hook(look)
    settings = {"compile": Compile(_BLOCKS), "recompute": Recompute(blocks=("encoder.0",))}
    found = _train(ours, replace(_PLAN, **settings), bf16=True, sizes=[2] * 3)
    assert set(seen) == {(torch.bfloat16, True)}
    assert len(graphs) == len(_BLOCKS)
    assert _difference(found, _train(plain, _PLAN, bf16=True, sizes=[2] * 3)) < 0.02


def test_blocks_that_are_alike_are_compiled_once(graphs: list[object]) -> None:
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(5))
    )
    plain = copy.deepcopy(model)
    found = _train(model, replace(_PLAN, compile=Compile(tuple("01234"))))
    assert (
        len(graphs) == 2 * 2
    )  # for each size the first, which needs no gradient of its input, and the others
    assert _difference(found, _train(plain, _PLAN)) < 1e-5


def test_many_unlike_blocks_of_one_class_are_all_compiled(graphs: list[object]) -> None:
    """Torch gives up on a function after eight variants; all of these have the forward of nn.Sequential."""
    widths = [4, *range(5, 15)]
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(a, b, 1), nn.ReLU()) for a, b in pairwise(widths)))
    _train(model, replace(_PLAN, compile=Compile(tuple(map(str, range(10))))), sizes=[2, 2])
    assert len(graphs) == 10


def test_the_hooks_see_what_compiled_blocks_save(graphs: list[object]) -> None:
    model, plain = _unet(), _unet()
    images = _batch(2, 0, torch.float32).images
    keys = frozenset(_outside().saved)
    # what goes into an encoder's second block is pooled, and saved by the block
    assert any(path == "encoder.1" for path, _, _ in keys)
    with SavedTensors(model, keys) as saved:
        forward = compiled(model, Compile(_BLOCKS), saved.forward)
        with forward():
            loss = model(images).square().sum()
        loss.backward()
    assert saved.stats is not None
    assert saved.stats.num_recomputed == len(keys)
    assert not saved.stats.unmet | saved.stats.refused
    plain(images).square().sum().backward()
    ours, theirs = ([each.grad for each in net.parameters()] for net in (model, plain))
    assert _difference(ours, theirs) < 1e-6  # type: ignore[arg-type]


def test_a_smaller_budget_keeps_less(graphs: list[object]) -> None:
    def kept_bytes(model: nn.Module, budget: float | None) -> int:
        with SavedTensors(model, frozenset()) as saved:
            with compiled(model, Compile(_BLOCKS, budget), saved.forward)():
                loss = model(_batch(2, 0, torch.float32).images).square().sum()
            loss.backward()
        assert saved.stats is not None
        return saved.stats.kept_bytes

    whole, small = _unet(), _unet()
    assert kept_bytes(small, 0.0) < 0.8 * kept_bytes(whole, None)
    ours, theirs = ([each.grad for each in net.parameters()] for net in (small, whole))
    assert _difference(ours, theirs) < 1e-6  # type: ignore[arg-type]


def test_dropout_hangs_on_the_seed_alone(graphs: list[object]) -> None:
    def losses() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(0.5)), nn.Conv2d(4, 2, 1))
        plan = replace(_PLAN, compile=Compile(("0",)), recompute=Recompute(blocks=("0",)))
        return _train(model, plan, sizes=[2, 2])

    assert all(map(torch.equal, losses(), losses()))


class Breaking(nn.Module):
    """Decides by the values of its input, which no compiler can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return x.relu() if float(x.detach().max()) > 0 else x


def test_what_cannot_be_followed_is_compiled_in_pieces(graphs: list[object]) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Breaking(), nn.Conv2d(4, 2, 1)).double()
    ours = copy.deepcopy(plain)
    expected = _train(plain, _PLAN)
    assert _difference(_train(ours, replace(_PLAN, compile=Compile(("0",)))), expected) < 1e-12
    assert _difference(_states(ours), _states(plain)) < 1e-12
    assert len(graphs) > 1


def test_other_models_are_not_affected(graphs: list[object]) -> None:
    model, other = _unet(), _unet()
    _train(model, replace(_PLAN, compile=Compile(_BLOCKS)), sizes=[2])
    before = len(graphs)
    expected = _train(_unet(), _PLAN, sizes=[2])
    assert all(map(torch.equal, _train(other, _PLAN, sizes=[2]), expected))
    model.eval()(_batch(2, 0, torch.float32).images)  # nor is the model itself, outside of its steps
    assert len(graphs) == before


def test_a_block_that_cannot_be_compiled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such machine")

    monkeypatch.setattr("outsize.strategies.compiled.BACKEND", fail)
    model = _unet()
    step = compose(model, _square, replace(_PLAN, compile=Compile(("encoder.0", "bottleneck"))), bf16=False)
    with pytest.raises(PlanError, match=r"encoder\.0 cannot be compiled.*no such machine.*leave it out"):
        step(_batch(2, 0, torch.float32), last=True)
    assert not any("forward" in vars(module) for module in model.modules())


def test_an_error_of_the_model_stays_its_own(graphs: list[object]) -> None:
    class Refusing(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not today")

    step = compose(
        nn.Sequential(Refusing(4, 4, 1)), _square, replace(_PLAN, compile=Compile(("0",))), bf16=False
    )
    with pytest.raises(ValueError, match="not today"):
        step(_batch(2, 0, torch.float32), last=True)


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(PlanError, match=r"'encoder\.9'.*plan again"):
        compiled(_unet(), Compile(("encoder.9",)), nullcontext)


@pytest.mark.parametrize(
    "settings",
    [
        {"compile": Compile(("encoder.0", "encoder.0.0"))},
        {"compile": Compile(("encoder.0",)), "recompute": Recompute(blocks=("encoder.0.0",))},
    ],
    ids=["compiled", "recomputed"],
)
def test_nothing_else_may_lie_inside_of_a_block(settings: dict[str, Any]) -> None:
    step = compose(_unet(), _square, replace(_PLAN, **settings), bf16=False)
    with pytest.raises(PlanError, match=r"encoder\.0 cannot be compiled.*encoder\.0\.0.*leave one"):
        step(_batch(2, 0, torch.float32), last=True)


def test_a_forward_that_was_replaced_is_not_lost() -> None:
    model = _unet()
    block = model.get_submodule("bottleneck")
    block.forward = block.forward
    with pytest.raises(PlanError, match=r"'bottleneck'.*take back"):
        compiled(model, Compile(("bottleneck",)), nullcontext)
