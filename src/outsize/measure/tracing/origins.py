"""Tells which layer an operation of backward finds gradients for.

forward    |--- conv1 ---|- norm1 -|--- conv2 ---|      autograd numbers its nodes in the order forward makes them
nodes       0  1          2         3  4
backward    a node knows its number, and the number tells the layer
"""

from __future__ import annotations

from bisect import bisect_right

import torch
from torch import nn

Layer = tuple[str, int]  # path of a module, and which of its calls


class Origins:
    """Layers by the numbers of autograd's nodes; `begins` is to be called whenever forward enters another layer."""

    def __init__(self, model: nn.Module, first: Layer = ("", 0)) -> None:
        self._starts, self._layers = [0], [first]
        self._owners = {
            id(parameter): (path.rpartition(".")[0], 0) for path, parameter in model.named_parameters()
        }
        self._model = model  # an id is good for as long as its object lives
        self._last = first

    def begins(self, layer: Layer) -> None:
        """Note that nodes from now on are of this layer."""
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._layers.append(layer)

    def here(self) -> Layer:
        """Return the layer of the node that runs; sums of gradients, which have none, belong to the node before."""
        node = torch._C._current_autograd_node()
        if node is not None:
            weight = getattr(node, "variable", None)  # of a node that adds to the gradient of a weight
            if weight is not None:
                self._last = self._owners.get(id(weight), self._last)
            else:
                self._last = self._layers[bisect_right(self._starts, node._sequence_nr()) - 1]
        return self._last
