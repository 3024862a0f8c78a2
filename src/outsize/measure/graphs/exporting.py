"""Reads a model's graph with torch.export: nothing is computed, only shapes flow through."""

from __future__ import annotations

import hashlib
import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from outsize.errors import TraceError, explain
from outsize.graph import INPUT, PARAMETER, ModelGraph, Op, Setting, kinds
from outsize.measure.graphs.opnames import canonical, kind_of
from outsize.measure.memory import uncollected
from outsize.measure.state import as_it_was
from outsize.measure.tensors import own_dtype
from outsize.tiles.rules import NAMED

# Pictures to trace with: a multiple of 3 and of every power of two up to 128, so that nothing is padded and cropped,
# and not square, so that a size fixed inside the model does not pass for a multiple of the picture's.
EXAMPLE_HEIGHT_PX, EXAMPLE_WIDTH_PX = 768, 1152

_MOST_STEPS = 50_000  # of a recurrent layer

_NOISY_LOGGERS = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.export",
    "torch._export",
    "torch._subclasses.fake_tensor",  # of each size that a model does not take
)


def trace(model: nn.Module, example: Sequence[int] | Tensor | tuple[Tensor, ...]) -> ModelGraph:
    """Trace a model in evaluation mode, given the shape of its input or the inputs themselves.

    A model that cannot be exported is refused. Running it on real numbers and watching the operations
    would always give a graph, but one that silently lacks every path through a Python number.
    """
    return as_graph(export(model, _example_tensors(model, example)))


def export(model: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """Export a model in evaluation mode for inputs of just these shapes; their numbers are never looked at."""
    with as_it_was(model), quiet(), uncollected(), torch.no_grad(), _none_endless(model), _none_begun():
        try:
            program: ExportedProgram = torch.export.export(model.eval(), inputs, strict=False)
            if (written := _written(program)) is not None:
                raise RuntimeError(f"{written} changes a weight in place")
            # This turns in-place operations into plain ones. What has a rule stays as it is: its name (roll, attention)
            # is one that a person knows, where torch's core set would show index arithmetic.
            program = program.run_decompositions(_without_rule())
        except (
            Exception
        ) as error:  # nothing of ours runs there: a model and torch may raise anything, asserts too
            raise TraceError(_why(model, inputs, error)) from error
    return program


def export_training(model: nn.Module, inputs: tuple[Any, ...]) -> ExportedProgram:
    """Export a model as it is set to train, for inputs of just these shapes; operations stay those that forward calls.

    Its graph is to be run: what writes in place, into statistics of norms too, does so there.
    """
    with as_it_was(model), quiet(), uncollected(), torch.enable_grad(), _no_own_backward(), _none_begun():
        try:
            program: ExportedProgram = torch.export.export(model, inputs, strict=False)
        except Exception as error:  # nothing of ours runs there
            tensors = tuple(each for each in inputs if isinstance(each, Tensor))
            raise TraceError(_why(model, tensors, error)) from error
    return program


@contextmanager
def _no_own_backward() -> Iterator[None]:
    """Refuse operations with a backward of their own: a graph would hold their forward alone."""

    def apply(cls: type, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"{cls.__name__} has a backward of its own (torch.autograd.Function)")

    plain = vars(torch.autograd.Function)["apply"]
    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain


@contextmanager
def _none_endless(model: nn.Module) -> Iterator[None]:
    """Refuse a recurrent layer that is led from pixel to pixel: torch goes each step of it, which takes hours."""

    def count(module: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            num_steps = given[0].shape[1 if module.batch_first and given[0].dim() == 3 else 0]
            if num_steps > _MOST_STEPS:
                raise RuntimeError(f"a recurrent layer takes {num_steps:,} steps, one after another")

    with ExitStack() as hooks:
        for each in model.modules():
            if isinstance(each, nn.RNNBase):
                hooks.callback(each.register_forward_pre_hook(count).remove)
        yield


@contextmanager
def _none_begun() -> Iterator[None]:
    """End the transforms of torch.func that an export began and did not end as it failed: all else would run in them.

    https://github.com/pytorch/pytorch/blob/main/torch/csrc/functorch/init.cpp
    """
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _written(program: ExportedProgram) -> str | None:
    """Name an operation that writes into the data of a weight: torch crashes where it rewrites such a graph."""
    weights = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.CONSTANT_TENSOR
        and isinstance(program.constants.get(spec.target or ""), FakeTensor)
    }
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if (
            schema is not None
            and schema.is_mutable
            and any(each.name in weights for each in node.all_input_nodes)
        ):
            return str(node.target)
    return None


@cache
def _without_rule() -> dict[Any, Callable[..., Any]]:
    """Return how torch writes the operations that have no rule in terms of others, which may have one."""
    table = torch.export.default_decompositions()
    return {target: table[target] for target in list(table) if not _has_rule(str(target))}


def _has_rule(target: str) -> bool:
    name = target.removeprefix("aten.").split(".")[0]
    return kind_of(name) in NAMED or name in _SPOKEN


# Kept for a person to read, though all of the picture is looked at; a recurrent layer would become thousands of others.
_SPOKEN = kinds("""
    tril triu eye linspace logspace grid_sampler affine_grid_generator cdist stft istft gru lstm rnn_tanh rnn_relu
    """)


def example_shape(in_channels: int) -> tuple[int, int, int, int]:
    """Return a good shape to trace a picture model with."""
    return 1, in_channels, EXAMPLE_HEIGHT_PX, EXAMPLE_WIDTH_PX


def _example_tensors(
    model: nn.Module, example: Sequence[int] | Tensor | tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    if isinstance(example, Tensor):
        return (example,)
    if all(isinstance(each, Tensor) for each in example):
        return tuple(example)  # type: ignore[arg-type]
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    # a shape that takes no memory, however large the picture
    with FakeTensorMode(allow_non_fake_inputs=True):
        return (torch.zeros(tuple(example), dtype=own_dtype(model), device=like.device),)  # type: ignore[arg-type]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep export's remarks about its own workings from the user; its errors still come through.

    One of them is no warning and no log record: where a branch depends on data, the graph so far is
    printed to standard error.
    """
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.filterwarnings("ignore", module=r"torch(\.|$)")
        warnings.filterwarnings("ignore", message=".*was assigned during export")  # and is put back
        warnings.filterwarnings(
            "ignore", message=".*LeafSpec", category=FutureWarning
        )  # torch 2.11 of itself
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _why(model: nn.Module, inputs: tuple[Tensor, ...], error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in inputs)
    return explain(
        f"the graph of {type(model).__name__} cannot be read for an input of {shapes}",
        f"{type(error).__name__}: {lines[0] if lines else 'no message'}",
        "a model that torch.export can export",
        "take data-dependent branches, .item() and .numpy() out of forward, or mend the input's shape",
    )


def as_graph(program: ExportedProgram) -> ModelGraph:
    """Return the plain graph of an exported model: its operations are the nodes, in order, less the last one."""
    signature = program.graph_signature
    given = _given(program)
    indices: dict[fx.Node, int] = {}
    ops: list[Op] = []
    results: Sequence[Any] = ()
    for node in program.graph.nodes:
        if node.op == "output":
            results = node.args[0]
            continue
        indices[node] = len(ops)
        ops.append(_as_op(node, len(ops), indices, program.graph_module, given))
    outputs = [
        indices[result]
        for result, spec in zip(results, signature.output_specs, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(result, fx.Node)
    ]
    return ModelGraph(tuple(ops), tuple(op.index for op in ops if op.kind == INPUT), tuple(outputs))


def _as_op(
    node: fx.Node,
    index: int,
    indices: dict[fx.Node, int],
    root: nn.Module,
    given: dict[str, tuple[str, dict[str, Setting]]],
) -> Op:
    shape = _shape(node.meta.get("val"))
    if node.op in ("placeholder", "get_attr"):
        kind, settings = given.get(node.name, (PARAMETER, {}))
        return Op(index, kind, "", 0, (), shape, settings)
    module, call = module_call(node)
    if node.target is operator.getitem:
        source, item = node.args
        assert isinstance(source, fx.Node)
        return Op(index, "getitem", module, call, (indices[source],), shape, {"item": _plain(item)})
    arguments = node.normalized_arguments(root, normalize_to_only_use_kwargs=True)
    if arguments is None:
        inputs = tuple(indices[each] for each in node.all_input_nodes)
        return Op(index, f"{node.target} (arguments not understood)", module, call, inputs, shape)
    nodes = list(_nodes(tuple(arguments.kwargs.values())))
    settings = {name: _plain(value) for name, value in arguments.kwargs.items()}
    draws = _draws(node.target, settings)
    kind, settings = canonical(str(node.target), settings, [_shape(each.meta.get("val")) for each in nodes])
    if draws:
        settings = {**settings, "draws": True}
    return Op(index, kind, module, call, tuple(indices[each] for each in nodes), shape, settings)


def _given(program: ExportedProgram) -> dict[str, tuple[str, dict[str, Setting]]]:
    """Return for each input of the graph what it is: the picture, or something of the model's.

    Buffers that the model changes are marked, and constants made while it ran are known by their values.
    """
    signature = program.graph_signature
    changed = {spec.target for spec in signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION}
    given: dict[str, tuple[str, dict[str, Setting]]] = {}
    for spec in signature.input_specs:
        settings: dict[str, Setting] = {}
        if spec.kind is InputKind.BUFFER and spec.target in changed:
            settings["changes"] = True
        if spec.kind is InputKind.CONSTANT_TENSOR and spec.target is not None:
            settings["value"] = _digest(program.constants.get(spec.target))
        given[spec.arg.name] = (INPUT if spec.kind is InputKind.USER_INPUT else PARAMETER, settings)
    return given


def _digest(value: object) -> str:
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.device.type == "meta":
        return ""
    return hashlib.sha256(
        value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def _draws(target: object, settings: dict[str, Setting]) -> bool:
    """Whether an operation draws random numbers: dropout does not where nothing is trained."""
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    return settings.get("train", settings.get("training")) is not False and settings.get("dropout_p") != 0.0


def module_call(node: fx.Node) -> tuple[str, int]:
    """Read "decoder.0" and 1 from the stack of modules, whose keys end in "@1" for the second call."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return "", 0
    key, (path, _) = list(stack.items())[-1]
    _, _, call = str(key).rpartition("@")
    return path.partition("@")[0], int(call) if call.isdigit() and "@" in str(key) else 0


def _shape(value: object) -> tuple[int, ...]:
    if isinstance(value, Tensor):
        return tuple(int(size) for size in value.shape)
    if isinstance(value, list | tuple):
        return _shape(value[0]) if value else ()
    return ()  # a Python number


def _nodes(value: object) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _nodes(each)


def _plain(value: object) -> Setting:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(each) for each in value)
    return "tensor" if isinstance(value, fx.Node) else str(value)
