"""Cuts the traced graph of a model into a program for each stage, and says what goes from stage to stage.

graph      conv1 relu1 | conv2 relu2 | up cat(relu1, .) head      cut before conv2 and before up
programs   0: picture -> relu1          streams: relu1 to stages 1 and 2, relu2 to stage 2
           1: relu1 -> relu2
           2: relu1, relu2 -> answer

A program is run with the parameters and buffers of the model itself: gradients and statistics land where they belong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from outsize.errors import PlanError, explain
from outsize.measure.graphs import export_training, module_call
from outsize.strategies.pipeline.rules import Rules
from outsize.strategies.pipeline.shapes import SentLayout, layouts_of

Cut = Sequence[tuple[str, int]]  # the first layer of each stage


@dataclass(frozen=True)
class SentStream:
    """A tensor that one stage makes and later ones read."""

    name: str
    made: int
    read: tuple[int, ...]
    layout: SentLayout


@dataclass(frozen=True)
class Taken:
    """What a program is given: "input" by its place, "parameter", "buffer" and "stream" by name, or a "constant"."""

    kind: str
    what: Any
    is_written: bool = False  # in place


@dataclass(frozen=True)
class StageProgram:
    """The operations of one stage."""

    run: Callable[..., tuple[Any, ...]]
    takes: tuple[Taken, ...]
    gives: tuple[str, ...]  # streams; the last stage gives the parts of the answer
    draws: bool  # random numbers


@dataclass(frozen=True)
class Cutout:
    """A model in stages, for inputs of one shape."""

    programs: tuple[StageProgram, ...]
    streams: Mapping[str, SentStream]
    answer: pytree.TreeSpec
    owners: Mapping[str, int] = field(
        default_factory=dict
    )  # the stage that holds each parameter and changed buffer

    def answered(self, parts: Sequence[Any]) -> Any:
        """Put the parts of an answer together as the model does."""
        return pytree.tree_unflatten(list(parts), self.answer)


def cut_model(model: nn.Module, inputs: tuple[Any, ...], cut: Cut, rules: Rules, *, bf16: bool) -> Cutout:
    """Trace a model as it trains, and cut it before the layers named."""
    return cut_traced(export_training(model, inputs), model, inputs, cut, rules, bf16=bf16)


def layers_of(traced: ExportedProgram) -> list[tuple[str, int]]:
    """Return the layers of a traced model, each by its path and call, in the order in which they begin."""
    found = (module_call(node) for node in traced.graph.nodes if node.op == "call_function")
    return list(dict.fromkeys(each for each in found if each[0]))


def cut_traced(
    traced: ExportedProgram,
    model: nn.Module,
    inputs: tuple[Any, ...],
    cut: Cut,
    rules: Rules,
    *,
    bf16: bool,
) -> Cutout:
    """Cut a traced model before the layers named; refuse a cut that would change what it does."""
    given = _given(traced, model)
    layouts = layouts_of(traced, model, given, pytree.tree_leaves(inputs), bf16=bf16)
    _follow_writes(traced.graph)
    place = _places(traced, cut, given)
    programs = _Programs(traced, given, place, len(cut), rules)
    streams = {
        node.name: SentStream(node.name, place[node], tuple(sorted(read)), layouts[node.name])
        for node, read in programs.read.items()
    }
    _refuse_late_writes(programs.written, streams)
    owners = {
        each.what: place[node] for node, each in given.items() if each.kind == "parameter" and node in place
    }
    owners |= _changed_buffers(programs)
    spec = traced.call_spec.out_spec
    assert spec is not None
    return Cutout(programs.made(), streams, spec, owners)


def _given(traced: ExportedProgram, model: nn.Module) -> dict[fx.Node, Taken]:
    """Return what each input of the graph is."""
    by_name = {spec.arg.name: spec for spec in traced.graph_signature.input_specs}
    found: dict[fx.Node, Taken] = {}
    number = 0
    for node in traced.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = by_name[node.name]
        if spec.kind is InputKind.USER_INPUT:
            found[node] = Taken("input", number)
            number += 1
        elif spec.kind is InputKind.PARAMETER:
            found[node] = Taken("parameter", spec.target)
        elif spec.kind is InputKind.BUFFER and spec.target in dict(model.named_buffers()):
            found[node] = Taken("buffer", spec.target)
        else:
            found[node] = Taken("constant", traced.constants[str(spec.target)])
    return found


def _places(traced: ExportedProgram, cut: Cut, given: Mapping[fx.Node, Taken]) -> dict[fx.Node, int]:
    """Return the stage of each operation, and of each parameter: the first that reads it.

    A layer that the model does not run now, as in a phase that trains its first half, leaves its stage to the next.
    """
    place: dict[fx.Node, int] = {}
    now = 0
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            place[node] = place[node.args[0]]
            continue
        layer = module_call(node)
        now = next((stage for stage in range(now + 1, len(cut)) if cut[stage] == layer), now)
        place[node] = now
    for node, taken in given.items():
        readers = [place[user] for user in node.users if user in place]
        if taken.kind == "parameter" and readers:
            place[node] = min(readers)
    return place


def _follow_writes(graph: fx.Graph) -> None:
    """Let whatever reads a tensor after it was written in place read what the writing returned: the same memory."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        target = written_by(node)
        if target is not None and target.op == "call_function" and _returns_its_own(node):
            number = numbers[node]
            target.replace_all_uses_with(node, delete_user_cb=partial(_comes_after, numbers, number))


def _comes_after(numbers: Mapping[fx.Node, int], number: int, user: fx.Node) -> bool:
    return numbers[user] > number


def written_by(node: fx.Node) -> fx.Node | None:
    """Return what an operation writes in place: its first input, for those that end in an underscore."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable or not node.args:
        return None
    info = schema.arguments[0].alias_info
    target = node.args[0]
    return target if info is not None and info.is_write and isinstance(target, fx.Node) else None


def _returns_its_own(node: fx.Node) -> bool:
    schema = node.target._schema  # type: ignore[union-attr]
    return len(schema.returns) == 1 and schema.returns[0].alias_info is not None


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or len(schema.returns) != 1 or schema.returns[0].alias_info is None:
        return False
    return bool(node.args) and isinstance(node.args[0], fx.Node)


def _changed_buffers(programs: _Programs) -> dict[str, int]:
    """Return the stage that changes each buffer; refuse one that another stage reads as well."""
    found: dict[str, int] = {}
    for name, stages in programs.buffers.items():
        if name not in programs.changed:
            continue
        if len(stages) > 1:
            need = "each layer with statistics of its own in one stage"
            remedy = "cut the model elsewhere, or take fewer stages"
            raise PlanError(
                explain("two stages change one buffer", f"{name}, in {len(stages)}", need, remedy)
            )
        found[name] = min(stages)
    return found


def _refuse_late_writes(written: Mapping[str, int], streams: Mapping[str, SentStream]) -> None:
    for name, stage in written.items():
        if any(reader > stage for reader in streams[name].read):
            need = "what is written in place to be read by no later stage"
            remedy = "cut the model elsewhere, or take fewer stages"
            raise PlanError(
                explain("a stage writes over what later ones read", f"{name}, in stage {stage}", need, remedy)
            )


class _Programs:
    """Graphs of stages while they are put together."""

    def __init__(
        self,
        traced: ExportedProgram,
        given: Mapping[fx.Node, Taken],
        place: Mapping[fx.Node, int],
        num_stages: int,
        rules: Rules,
    ) -> None:
        self.read: dict[fx.Node, set[int]] = {}  # of each stream, by whom
        self.written: dict[str, int] = {}  # streams that a later stage than their maker writes
        self.buffers: dict[str, set[int]] = {}
        self.changed: set[str] = set()
        self._given, self._place, self._rules = given, place, rules
        self._root = traced.graph_module
        self._graphs = [fx.Graph() for _ in range(num_stages)]
        self._here: list[dict[fx.Node, fx.Node]] = [{} for _ in range(num_stages)]
        self._takes: list[dict[fx.Node, Taken]] = [{} for _ in range(num_stages)]
        self._draws = [False] * num_stages
        for node in traced.graph.nodes:
            if node.op == "call_function":
                self._add(node, place[node])
        results = next(node for node in traced.graph.nodes if node.op == "output").args[0]
        last = num_stages - 1
        self._answer = [self._in(last, each) if isinstance(each, fx.Node) else each for each in results]

    def made(self) -> tuple[StageProgram, ...]:
        """Return the programs."""
        found = []
        for stage, graph in enumerate(self._graphs):
            is_last = stage == len(self._graphs) - 1
            gives = [node for node in self.read if self._place[node] == stage]
            results = self._answer if is_last else [self._in(stage, node) for node in gives]
            graph.output(tuple(results))
            run = fx.GraphModule(self._root, graph, f"stage_{stage}")
            names = () if is_last else tuple(node.name for node in gives)
            found.append(StageProgram(run, tuple(self._takes[stage].values()), names, self._draws[stage]))
        return tuple(found)

    def _add(self, node: fx.Node, stage: int) -> None:
        copied = self._graphs[stage].node_copy(node, lambda each: self._in(stage, each))
        if node.target in self._rules:
            copied.target = self._rules[node.target]
        self._here[stage][node] = copied
        self._draws[stage] |= _draws(node, self._root)
        self._note_writes(node, stage)

    def _note_writes(self, node: fx.Node, stage: int) -> None:
        """Remember what a stage writes in place that it has not made, through views as well."""
        root = written_by(node)
        if node.target is torch.ops.aten.batch_norm.default and node.args[5]:
            for each in node.args[3:5]:
                if isinstance(each, fx.Node):
                    self.changed.add(self._given[each].what)
        while root is not None and root not in self._takes[stage]:
            if not _is_view(root):
                return
            root = root.args[0]  # type: ignore[assignment]
        if root is None:
            return
        taken = self._takes[stage][root]
        if taken.kind == "buffer":
            self.changed.add(taken.what)
            return
        self._takes[stage][root] = Taken(taken.kind, taken.what, is_written=True)
        if taken.kind == "stream":
            self.written[taken.what] = stage

    def _in(self, stage: int, node: fx.Node) -> fx.Node:
        """Return what stands for a node in a stage; what others make, or the model has, it is given."""
        here = self._here[stage]
        if node not in here:
            graph = self._graphs[stage]
            if node.op == "get_attr":
                here[node] = graph.get_attr(str(node.target))
                return here[node]
            taken = self._given.get(node)
            if taken is None or (taken.kind == "parameter" and self._place[node] != stage):
                taken = Taken("stream", node.name)
                self.read.setdefault(node, set()).add(stage)
            if taken.kind == "buffer":
                self.buffers.setdefault(taken.what, set()).add(stage)
            self._takes[stage][node] = taken
            here[node] = graph.placeholder(node.name)
        return here[node]


def _draws(node: fx.Node, root: nn.Module) -> bool:
    """Whether an operation draws random numbers: dropout does not where nothing is dropped."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = node.normalized_arguments(root, normalize_to_only_use_kwargs=True)
    settings = {} if given is None else given.kwargs
    still = settings.get("train") is False or settings.get("training") is False
    return not still and settings.get("dropout_p") != 0.0
