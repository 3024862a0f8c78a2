"""Which rank of a pipeline holds which weights; all of them brought together on the owner where the whole is needed.

every rank   holds the weights of its stages, and lets go of the others (`strategies/elsewhere`)
owner        to save, to validate: takes in what the others hold, has the whole model, lets go of it again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from outsize.ranks import World
from outsize.strategies.elsewhere import let_go

_HOST = torch.device("cpu")


class WeightParts:
    """Weights of a model by the ranks that hold them."""

    def __init__(self, model: nn.Module, holders: Mapping[str, set[int]], stages: World) -> None:
        """`holders` are ranks of `stages` by weight and changed buffer; what nobody uses the first one keeps."""
        self._model, self._stages = model, stages
        self._weights = {name: holders.get(name) or {0} for name, _ in model.named_parameters()}
        self._buffers = {name: ranks for name, ranks in holders.items() if name not in self._weights}
        self._device = _HOST

    def hold(self, device: torch.device) -> None:
        """Move this rank's weights to a device, and let go of the others."""
        self._device = device
        for name, parameter in self._model.named_parameters():
            if self._stages.rank in self._weights[name]:
                parameter.data = _placed(parameter.data, device)
            else:
                let_go(parameter, device)
        for buffer in self._model.buffers():
            buffer.data = buffer.data.to(device)

    @contextmanager
    def whole(self, device: torch.device = _HOST) -> Iterator[None]:
        """Let the owner have the whole model inside, what others hold on a device; every rank comes by here."""
        known: dict[str, Tensor] = {
            **dict(self._model.named_parameters()),
            **dict(self._model.named_buffers()),
        }
        ranks = {**self._weights, **self._buffers}
        own = self._stages.rank
        came = self.collected({name: known[name].data for name in ranks if min(ranks[name]) == own})
        for name, tensor in came.items():
            if name in self._weights:
                known[name].data = _placed(tensor, device)
            else:
                known[name].copy_(tensor)
        try:
            yield
        finally:
            for name in came.keys() & self._weights.keys():
                let_go(known[name], self._device)

    def collected(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return on the owner what the other ranks of its pipeline have given, on the host; elsewhere nothing."""
        if self._stages.rank_of_all(0) != 0:
            return {}  # replicas have the same
        return self._stages.collected(own)


def _placed(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a weight on a device, with channels last as the whole model has it there (`card.to_device`)."""
    layout = torch.channels_last if tensor.dim() == 4 else torch.preserve_format
    return tensor.to(memory_format=layout).to(device)
