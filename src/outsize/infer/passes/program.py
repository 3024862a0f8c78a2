"""A model exported at the size of one picture: its operations, their passes, and its weights as they are now."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from outsize.errors import TraceError
from outsize.measure.graphs import as_graph, export
from outsize.measure.tensors import own_device, own_dtype
from outsize.tiles.halo import Obstacle
from outsize.tiles.passes import PassGraph, lay_out

_MOST_KNOWN = 4
_PROGRAMS: weakref.WeakKeyDictionary[nn.Module, dict[tuple[int, ...], Program]] = weakref.WeakKeyDictionary()


class Program:
    """One picture's size: a graph whose operations can be run one by one, on parts of it."""

    def __init__(self, model: nn.Module, num_channels: int, size: tuple[int, int]) -> None:
        dtype, device = own_dtype(model), own_device(model)
        # never written to: a large picture takes addresses here and no memory
        picture = torch.empty((1, num_channels, *size), dtype=dtype, device=device)
        program = export(model, (picture,))
        laid = lay_out(as_graph(program))
        self.nodes: list[fx.Node] = [node for node in program.graph.nodes if node.op != "output"]
        self.index_of = {node.name: index for index, node in enumerate(self.nodes)}
        self.laid: PassGraph = replace(
            laid,
            obstacles=(*laid.obstacles, *self._obstacles(laid, program)),
            number_bytes=dtype.itemsize,
        )
        self._model = weakref.ref(model)  # or a model would live as long as it is remembered here
        self._names = {
            spec.arg.name: spec.target
            for spec in program.graph_signature.input_specs
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
        }
        self._constants = {
            spec.arg.name: program.constants[spec.target]
            for spec in program.graph_signature.input_specs
            if spec.kind is InputKind.CONSTANT_TENSOR and spec.target is not None
        }
        self._root = program.graph_module

    def given(self, index: int, device: torch.device) -> Any:
        """Return a weight, buffer or constant of the model, as it is now."""
        node = self.nodes[index]
        if node.op == "get_attr":
            found: Any = self._root
            for name in str(node.target).split("."):
                found = getattr(found, name)
        elif node.name in self._names:
            found = self._model()
            for name in str(self._names[node.name]).split("."):
                found = getattr(found, name)
        else:
            found = self._constants[node.name]
        return found.detach().to(device) if isinstance(found, Tensor) else found

    def arguments(self, index: int) -> dict[str, Any]:
        """Return the arguments of an operation by their names, as nodes and numbers."""
        found = self.nodes[index].normalized_arguments(self._root, normalize_to_only_use_kwargs=True)
        assert found is not None
        return dict(found.kwargs)

    def _obstacles(self, laid: PassGraph, program: torch.export.ExportedProgram) -> list[Obstacle]:
        """Name what a graph that is run in parts must not do: change the model, or answer with several maps."""
        found = [
            Obstacle(str(spec.target), "buffer", "is changed while the model runs")
            for spec in program.graph_signature.output_specs
            if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        ]
        if len(laid.graph.outputs) != 1:
            what = f"{len(laid.graph.outputs)} outputs"
            found.append(Obstacle("", what, "one map is needed"))
        return found


def program_for(model: nn.Module, num_channels: int, size: tuple[int, int], stride_px: int) -> Program:
    """Return the program for pictures of a size, or of that size filled up where the model takes no other.

    Those of the last few sizes are remembered as long as the model lives: a training validates the same scenes again
    and again.
    """
    known = _PROGRAMS.setdefault(model, {})
    key = (num_channels, *size, stride_px)
    if key not in known:
        while len(known) >= _MOST_KNOWN:
            del known[next(iter(known))]
        known[key] = _make(model, num_channels, size, stride_px)
    return known[key]


def forget(model: nn.Module) -> None:
    """Forget all programs of a model: one that is given again may have been changed."""
    _PROGRAMS.pop(model, None)


def _make(model: nn.Module, num_channels: int, size: tuple[int, int], stride_px: int) -> Program:
    full = (size[0] + -size[0] % stride_px, size[1] + -size[1] % stride_px)
    try:
        return Program(model, num_channels, size)
    except TraceError:
        if full == size:
            raise
    return Program(model, num_channels, full)
