"""Facts of a step from shapes alone, against a count of real tensors and numbers by hand."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torchvision.models.segmentation import deeplabv3_resnet50

from outsize.errors import TraceError
from outsize.measure.tracing.recorder import record
from outsize.measure.tracing.step import likeliest, trace_step
from outsize.models import build_model
from outsize.plan.plan import Fuse
from outsize.plan.step import BLOCK_BYTES, StepFacts, StepOp, Storage, allocated_bytes
from outsize.strategies.kernels.layers import fused_layers


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    output = model(images)
    logits = output["out"] if isinstance(output, dict) else output
    labels = torch.zeros(logits.shape[:1] + logits.shape[2:], dtype=torch.long)
    return F.cross_entropy(logits, labels, reduction="sum")


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def _unet(norm: str = "batch") -> nn.Module:
    return build_model("unet", num_classes=3, in_channels=3, levels=3, width=4, norm=norm)


def _smp(name: str, encoder: str = "resnet18", **options: Any) -> nn.Module:
    import segmentation_models_pytorch as smp

    built: nn.Module = getattr(smp, name)(encoder, encoder_weights=None, classes=3, **options)
    return built


MODELS: dict[str, Callable[[], nn.Module]] = {
    "unet": _unet,
    "unet, group norm": lambda: _unet("group"),
    "smp Unet": lambda: _smp("Unet"),
    "smp DeepLabV3Plus": lambda: _smp("DeepLabV3Plus"),
}


def _peak(facts: StepFacts) -> int:
    """Return the largest sum of storages that live while an operation runs."""
    changes = [0] * (len(facts.ops) + 2)
    for storage in facts.storages:
        changes[storage.born + 1] += storage.size_bytes
        changes[storage.dies + 1] -= storage.size_bytes
    now, peak = 0, 0
    for change in changes[:-1]:
        now += change
        peak = max(peak, now)
    return peak


class _LiveCount(TorchDispatchMode):
    """Counts what is alive, one storage at a time: no list of operations, no intervals, no hooks."""

    def __init__(self, *before: Any) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, Any] = {}
        self._count(before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._count(result)
        return result

    def _count(self, values: Any) -> None:
        for tensor in (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)):
            storage = tensor.untyped_storage()
            if (known := self._alive.get(id(storage))) is not None and known() is storage:
                continue
            size = -(-storage.nbytes() // 512) * 512
            self._alive[id(storage)] = weakref.ref(storage, lambda _, size=size: self._forget(size))
            self.now += size
        self.peak = max(self.peak, self.now)

    def _forget(self, size: int) -> None:
        self.now -= size


def _real_step(
    model: nn.Module, images: Tensor, optimizer: torch.optim.Optimizer | None, *, bf16: bool
) -> Callable[[], None]:
    def run() -> None:
        if optimizer is None:
            with torch.no_grad():
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    output = model(images)
                likeliest(output)
            return
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = _loss(model, images)
        loss.backward()
        optimizer.step()

    return run


def _prepared(name: str, dtype: torch.dtype, *, training: bool) -> tuple[nn.Module, Tensor, Any]:
    model = MODELS[name]().to(dtype).to(memory_format=torch.channels_last).train(training)
    images = torch.randn(2, 3, 32, 32, dtype=dtype).contiguous(memory_format=torch.channels_last)
    optimizer = _sgd(model.parameters()) if training else None
    if optimizer is not None:  # the first step makes the state
        _real_step(model, images, optimizer, bf16=False)()
        optimizer.zero_grad(set_to_none=True)
    return model, images, optimizer


@pytest.mark.parametrize("training", [True, False], ids=["train", "predict"])
@pytest.mark.parametrize("kind", ["float32", pytest.param("float64", marks=pytest.mark.long), "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_from_shapes_is_that_of_real_tensors_to_the_byte(
    name: str, kind: str, training: bool
) -> None:
    dtype, bf16 = (torch.float64 if kind == "float64" else torch.float32), kind == "bf16"
    model, images, optimizer = _prepared(name, dtype, training=training)
    state = [list(each.values()) for each in optimizer.state.values()] if optimizer else []
    count = _LiveCount(list(model.parameters()), list(model.buffers()), state, images)
    with count:
        _real_step(model, images, optimizer, bf16=bf16)()
    traced = trace_step(
        model,
        (2, 3, 32, 32),
        loss=_loss if training else None,
        optimizer=_sgd if training else None,
        bf16=bf16,
        device="cpu",
    )
    assert _peak(traced) == count.peak
    if training:
        for parameter in model.parameters():
            parameter.grad = None
    seen = record(
        _real_step(model, images, optimizer, bf16=bf16),
        model,
        optimizer=optimizer,
        given=(images,),
        training=training,
    )
    assert _peak(seen) == count.peak
    assert [(op.kind, op.module, op.call, op.backward) for op in seen.ops] == [
        (op.kind, op.module, op.call, op.backward) for op in traced.ops
    ]
    assert [(each.key, each.size_bytes, each.packed) for each in seen.saved] == [
        (each.key, each.size_bytes, each.packed) for each in traced.saved
    ]


def _held(facts: StepFacts, role: str) -> list[Storage]:
    return [each for each in facts.storages if each.role == role]


def _ops(facts: StepFacts, kind: str) -> list[StepOp]:
    return [op for op in facts.ops if op.kind == kind]


def _saved_bytes(facts: StepFacts) -> int:
    """Add up what is saved, each storage once, without rounding."""
    return sum({each.storage: each.size_bytes for each in facts.saved}.values())


def test_a_large_unet_saves_what_was_counted_before() -> None:
    model = build_model("unet", num_classes=4, in_channels=3, levels=5, width=64)
    assert _saved_bytes(trace_step(model, (4, 3, 512, 512), loss=_loss)) == 5_515_556_868


class _Small(nn.Module):
    """A layer that is called twice, one that runs in place, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.twice = nn.Conv2d(4, 4, 1)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.first(images))
        return self.drop(self.twice(self.twice(x)))


_PLANE = 2 * 8 * 8 * 4  # bytes of one channel of two float32 pictures


def _sum(model: nn.Module, images: Tensor) -> Tensor:
    return torch.as_tensor(model(images)).sum()


def test_saved_tensors_have_names_and_know_when_they_were_kept() -> None:
    facts = trace_step(_Small(), (2, 3, 8, 8), loss=_sum)
    found = [(each.key, each.size_bytes, facts.ops[each.packed].kind) for each in facts.saved]
    assert found == [
        (("first", 0, 0), 3 * _PLANE, "convolution"),  # its input, before it runs
        (("relu", 0, 0), 4 * _PLANE, "convolution"),  # its result, before the next one runs
        (("twice", 0, 0), 4 * _PLANE, "convolution"),
        (("twice", 1, 0), 4 * _PLANE, "convolution"),
        (("drop", 0, 0), _PLANE, "sum"),  # a byte for each number
    ]
    assert facts.saved[1].storage == facts.saved[2].storage
    assert facts.modules == ("", "first", "relu", "twice", "drop")
    assert facts.training


def test_on_the_cpu_dropout_keeps_numbers_instead_of_bytes() -> None:
    facts = trace_step(_Small(), (2, 3, 8, 8), loss=_sum, device="cpu")
    assert facts.saved[-1].key == ("drop", 0, 0)
    assert facts.saved[-1].size_bytes == 4 * _PLANE


def test_storages_live_from_the_first_to_the_last_use() -> None:
    facts = trace_step(_Small(), (2, 3, 8, 8), loss=_sum, optimizer=_sgd)
    end = len(facts.ops)
    assert {(each.born, each.dies) for each in _held(facts, "weight")} == {(-1, end)}
    assert {(each.born, each.dies) for each in _held(facts, "optimizer")} == {(-1, end)}
    assert [each.size_bytes for each in _held(facts, "input") if each.born == -1] == [2 * 3 * 8 * 8 * 4]
    gradients = _held(facts, "gradient")
    assert len(gradients) == len(_held(facts, "weight")) == len(_held(facts, "optimizer")) == 3
    assert all(facts.ops[each.born].backward and each.dies == end for each in gradients)
    assert all(each.size_bytes % 512 == 0 for each in facts.storages)
    first = facts.storages[_ops(facts, "convolution")[0].outputs[0]]
    # relu runs in place: its result lies there until its own backward and no longer
    assert first.dies == _ops(facts, "threshold_backward")[0].index + 1
    assert [op.backward for op in _ops(facts, "convolution_backward")] == [True] * 3
    assert {op.module for op in _ops(facts, "convolution_backward")} == {""}


def test_arithmetic_and_moved_bytes_by_hand() -> None:
    facts = trace_step(_Small(), (2, 3, 8, 8), loss=_sum)
    pixels = 2 * 8 * 8
    assert [op.flops for op in _ops(facts, "convolution")] == [
        2 * pixels * 4 * 3 * 9,
        2 * pixels * 4 * 4,
        2 * pixels * 4 * 4,
    ]
    assert [op.flops for op in _ops(facts, "convolution_backward")] == [
        2 * 2 * pixels * 4 * 4,  # of input and weight
        2 * 2 * pixels * 4 * 4,
        2 * pixels * 4 * 3 * 9,  # pictures need no gradient
    ]
    assert _ops(facts, "convolution")[0].moved_bytes == (3 + 4) * _PLANE + 4 * 3 * 9 * 4
    assert _ops(facts, "relu_")[0].moved_bytes == 2 * 4 * _PLANE
    assert _ops(facts, "expand")[0].moved_bytes == 0  # a view


def _copies(facts: StepFacts) -> list[Storage]:
    """Return the copies of weights that autocast makes."""
    weights = {each.index for each in _held(facts, "weight")}
    made = [op for op in _ops(facts, "_to_copy") if not op.backward and weights >= set(op.inputs)]
    return [facts.storages[op.outputs[0]] for op in made]


def test_copies_of_weights_live_until_the_cast_ends_or_backward_has_used_them() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU(), nn.Conv2d(4, 3, 1, bias=False))
    predicted = trace_step(model, (2, 3, 8, 8), loss=None, bf16=True)
    last = _ops(predicted, "convolution")[-1].index
    assert [copy.dies for copy in _copies(predicted)] == [last + 1] * 2
    trained = trace_step(model, (2, 3, 8, 8), loss=_sum, bf16=True)
    used = [op.index for op in _ops(trained, "convolution_backward")]
    assert [copy.dies for copy in _copies(trained)] == [used[1] + 1, used[0] + 1]


@pytest.mark.parametrize("name", ["Adam", "NAdam", "RAdam", "RMSprop", "Adagrad", "ASGD", "Adafactor"])
def test_optimizers_that_look_at_numbers_are_followed(name: str) -> None:
    model = nn.Conv2d(3, 3, 1)
    facts = trace_step(model, (2, 3, 8, 8), loss=_sum, optimizer=getattr(torch.optim, name))
    assert _held(facts, "optimizer")
    assert {(each.born, each.dies) for each in _held(facts, "optimizer")} == {(-1, len(facts.ops))}


def test_the_optimizer_takes_all_weights_at_once_as_on_cuda() -> None:
    model = nn.Sequential(*[nn.Conv2d(16, 16, 3) for _ in range(4)])
    one = 16 * 16 * 9 * 4
    together = trace_step(model, (2, 16, 32, 32), loss=_sum, optimizer=_adamw)
    roots = _ops(together, "_foreach_sqrt")
    assert len(roots) == 1
    sizes = [together.storages[each].size_bytes for each in roots[0].outputs]
    assert sizes.count(one) == 4
    apart = trace_step(model, (2, 16, 32, 32), loss=_sum, optimizer=_adamw, device="cpu")
    assert not _ops(apart, "_foreach_sqrt")
    assert len([each for each in _held(together, "optimizer") if each.size_bytes == one]) == 8


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: _smp("FPN", "efficientnet-b0"), marks=pytest.mark.long),
        lambda: deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=3),
    ],
    ids=["FPN, efficientnet-b0", "torchvision DeepLabV3"],
)
def test_models_of_others_are_followed_at_any_size(build: Callable[[], nn.Module]) -> None:
    model = build()
    facts = trace_step(model, (16, 3, 2048, 2048), loss=_loss, optimizer=_adamw, bf16=True)
    predicted = trace_step(model, (16, 3, 2048, 2048), loss=None, bf16=True)
    assert 2**30 * 4 < _peak(predicted) < _peak(facts) < 2**40
    assert sum(op.flops for op in facts.ops) > 2 * sum(op.flops for op in predicted.ops)


def test_the_model_is_left_alone() -> None:
    model = _unet().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trace_step(model, (2, 3, 32, 32), loss=_loss, optimizer=_adamw, bf16=True)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(type(value) is Tensor for value in model.state_dict().values())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_frozen_model_keeps_nothing_and_makes_no_gradients() -> None:
    model = _unet().requires_grad_(False)
    facts = trace_step(model, (2, 3, 32, 32), loss=_loss, optimizer=None)
    assert not facts.saved
    assert not _held(facts, "gradient")


def test_a_tensor_that_is_neither_parameter_nor_buffer_counts_as_input() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.conv = torch.full((1, 3, 1, 1), 0.5), nn.Conv2d(3, 3, 1)

        def forward(self, images: Tensor) -> Tensor:
            return torch.as_tensor(self.conv(images * self.scale))

    facts = trace_step(Scaled(), (2, 3, 8, 8), loss=_sum)
    assert len(_held(facts, "input")) == 2


class _ByData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        return x * 2 if x.mean().item() > 1e9 else torch.as_tensor(x.relu())


def test_a_path_that_depends_on_data_is_refused_and_recorded_instead() -> None:
    model = _ByData()
    with pytest.raises(
        TraceError, match=r"a step of _ByData cannot be followed for a batch of 2x3x8x8: found"
    ) as e:
        trace_step(model, (2, 3, 8, 8), loss=_sum)
    assert "\n" not in str(e.value)
    images = torch.randn(2, 3, 8, 8)
    facts = record(lambda: _sum(model, images).backward(), model, given=(images,))
    assert [op.kind for op in facts.ops if op.flops] == ["convolution", "convolution_backward"]
    assert [each.key for each in facts.saved] == [("conv", 0, 0), ("", 0, 0)]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_it_is_seen_when_forward_lets_go_of_what_autograd_keeps() -> None:
    class Naming(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Conv2d(3, 3, 1) for _ in range(3))

        def forward(self, images: Tensor) -> Tensor:
            named = self.first(images)
            return torch.as_tensor(self.third(self.second(named).sigmoid().tanh()))

    facts = trace_step(Naming(), (2, 3, 8, 8), loss=_sum)
    ops = {op.module or op.kind: op for op in facts.ops if not op.backward and op.outputs}
    made = {name: op.outputs[0] for name, op in ops.items()}
    let_go = {each.index: each.let_go for each in facts.storages}
    assert let_go[made["first"]] == ops["third"].index + 1  # its name goes when forward returns
    assert let_go[made["sigmoid"]] == ops["tanh"].index + 1
    lives = {each.index: each for each in facts.storages}
    assert lives[made["sigmoid"]].dies > ops["third"].index + 1
    images = torch.randn(2, 3, 8, 8)
    model = Naming()
    real = record(lambda: _sum(model, images).backward(), model, given=(images,))
    assert {each.let_go for each in real.storages} == {None}  # real tensors are kept as they are


def test_a_parameter_that_a_module_does_not_show_has_no_name() -> None:
    class Borrowing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.others = [nn.Parameter(torch.ones(3, 3, 1, 1)), nn.Parameter(torch.ones(9))]

        def forward(self, images: Tensor) -> Tensor:
            x = F.conv2d(self.conv(images), self.others[0])
            return F.conv2d(x, self.others[1].view(3, 3, 1, 1))

    model, images = Borrowing(), torch.randn(2, 3, 8, 8)
    facts = record(lambda: _sum(model, images).backward(), model, given=(images,))
    assert [each.key for each in facts.saved] == [("conv", 0, 0), ("", 0, 0), ("", 0, 1)]


@pytest.mark.parametrize(("device", "num_copies"), [("cuda", 3), ("cpu", 0)])
def test_a_part_of_a_gradient_is_copied_for_a_convolution_on_a_gpu(
    device: Literal["cuda", "cpu"], num_copies: int
) -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(16, 8, 1)

        def forward(self, images: Tensor) -> Tensor:
            return torch.as_tensor(self.second(torch.cat((self.first(images), self.first(-images)), 1)).sum())

    model = Apart().to(memory_format=torch.channels_last)
    facts = trace_step(model, (2, 3, 8, 8), loss=lambda net, x: net(x), device=device)
    copies = [op for op in facts.ops if op.backward and op.kind == "clone"]
    sizes = {each.index: each.size_bytes for each in facts.storages}
    assert [sizes[op.outputs[0]] for op in copies] == [4 * 2 * 8 * 8 * 8] * num_copies


def test_a_part_of_a_gradient_of_rows_is_copied_too() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv1d(3, 4, 1), nn.Conv1d(8, 4, 1)

        def forward(self, rows: Tensor) -> Tensor:
            return torch.as_tensor(self.second(torch.cat((self.first(rows), self.first(-rows)), 1)).sum())

    facts = trace_step(Rows(), (2, 3, 8), loss=lambda net, x: net(x), device="cuda")
    copies = [op for op in facts.ops if op.backward and op.kind == "clone"]
    assert len(copies) == 3


def test_a_block_that_is_run_again_adds_into_new_memory() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, images: Tensor) -> Tensor:
            return (self.conv(images) + images).sigmoid()

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block = nn.Conv2d(3, 3, 1), Residual()

        def forward(self, images: Tensor) -> Tensor:
            made = checkpoint(self.block, self.first(images), use_reentrant=False)
            assert isinstance(made, Tensor)
            return (made * made).sum()

    facts = trace_step(Again(), (2, 3, 8, 8), loss=lambda net, x: net(x), device="cuda")
    forward, again = (op for op in facts.ops if op.kind == "add" and op.module == "block")
    assert (forward.backward, again.backward) == (False, True)
    assert len(again.outputs) == 1  # a tensor of its own, not one of those that are added


@pytest.mark.parametrize(("device", "counts"), [("cuda", True), ("cpu", False)])
def test_what_a_gpu_does_about_biases_and_few_bands_is_written_down(device: str, counts: bool) -> None:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
    )
    facts = trace_step(
        nn.Sequential(*layers), (2, 3, 16, 16), loss=lambda model, x: model(x).sum(), device=device
    )
    forward = [op for op in facts.ops if op.kind == "convolution"]
    made_bytes = 2 * 8 * 16 * 16 * 4
    expected = [(made_bytes, 3), (0, 8), (made_bytes, 0)] if counts else [(0, 0)] * 3
    assert [(op.biased_bytes, op.depth) for op in forward] == expected
    backward = [op.biased_bytes for op in facts.ops if op.kind == "convolution_backward"]
    assert backward == ([made_bytes, 0, made_bytes] if counts else [0, 0, 0])


class _Asserting(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        torch._assert(input.shape[-1] == 224, "wrong size")  # as timm does it
        return super().forward(input)


def test_an_assertion_of_the_model_is_about_the_model_and_one_of_ours_is_not() -> None:
    with pytest.raises(TraceError, match="AssertionError: wrong size"):
        trace_step(_Asserting(3, 3, 1), (2, 3, 8, 8), loss=_sum)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
    fuse = Fuse(norms=("1",))  # which needs running statistics: no planner names such a norm
    with pytest.raises(AssertionError):
        trace_step(model, (2, 3, 8, 8), loss=_sum, around=lambda model: fused_layers(model, fuse)())


def test_sizes_are_rounded_up_as_a_gpu_does_it() -> None:
    sizes = [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1]
    assert [allocated_bytes(each) for each in sizes] == [0, BLOCK_BYTES, BLOCK_BYTES, 2 * BLOCK_BYTES]
