"""What spreading a model would send, found by a forward on shapes alone; nobody hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from outsize.errors import OutsizeError, TraceError, first_line
from outsize.measure.tracing import ghost_of
from outsize.plan.plan import Spatial
from outsize.ranks import ALONE
from outsize.strategies.spatial.layers import Spread
from outsize.strategies.spatial.shard import Message, Shard, Side, Work

_SOMEBODY = 0


@dataclass(frozen=True)
class _Unheard(Shard):
    """The smallest part of a picture, with neighbours wherever there are any, none of which hears anything."""

    counted: list[int] = field(default_factory=list)  # bytes of each time that messages go

    def carry(self, messages: Sequence[Message]) -> list[Work]:
        self.counted.append(sum(each.out.numel() * each.out.element_size() for each in messages))
        return []

    def gathered(self, own: Tensor) -> Tensor:
        self.counted.append(own.numel() * own.element_size())
        return own[None]


def borders_of(
    model: nn.Module, spatial: Spatial, num_bands: int, loss: Callable[[nn.Module, Tensor], Any]
) -> tuple[int, int] | str:
    """Return how many times messages go in a forward of one picture, and their bytes; or why it cannot be spread.

    The model runs as a loss has it run, on shapes, as in evaluation: norms over samples send what they do anyway.
    """
    core = min((tile.core for tile in spatial.tiles()), key=lambda each: each.num_px)
    tile = next(each for each in spatial.tiles() if each.core == core)
    rows, cols = (Side(_SOMEBODY, _SOMEBODY) if num > 1 else Side(None, None) for num in spatial.grid)
    shard = _Unheard(rows, cols, tile, ALONE, ALONE, spatial.grid)
    try:
        _forward(model, shard, num_bands, loss)
    except OutsizeError as error:
        return str(error)
    return len(shard.counted), sum(shard.counted)


def _forward(
    model: nn.Module, shard: _Unheard, num_bands: int, loss: Callable[[nn.Module, Tensor], Any]
) -> None:
    mode, core = FakeTensorMode(allow_non_fake_inputs=True), shard.tile.core
    try:
        ghost = ghost_of(model, mode).eval()
        with mode, torch.no_grad():
            spread, forward = Spread(shard), ghost.forward

            def in_parts(*args: Any, **kwargs: Any) -> Any:
                with spread:
                    return forward(*args, **kwargs)

            ghost.forward = in_parts
            loss(ghost, torch.empty(1, num_bands, core.height, core.width))
    except OutsizeError:
        raise
    except Exception as error:  # a model may raise anything
        raise TraceError(f"it does not run on a part of a picture: {first_line(error)}") from error
