"""What a plan is made from: numbers about a machine and a model, measured or traced, never guessed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from outsize.tiles.halo import Halo


@dataclass(frozen=True)
class Machine:
    """The device that computes, and the host it sits in."""

    device: str  # "cpu" or "cuda:0"
    name: str
    memory_bytes: int  # of the device; on a CPU that of the host
    free_bytes: int
    num_cores: int
    host_free_bytes: int


@dataclass(frozen=True)
class WindowFacts:
    """Memory of one window going through the model, as bytes that do not and bytes that do grow with it."""

    window_px: int  # side of the window that was looked at
    weights_bytes: int  # parameters and buffers
    predict_bytes_per_px: float
    train_bytes_per_px: float  # activations, their gradients and the loss
    optimizer_bytes: int  # gradients and optimizer state
    source: Literal["measured", "traced"]


@dataclass(frozen=True)
class Facts:
    """All that is known before anything is decided."""

    machine: Machine
    window: WindowFacts
    halo: Halo

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)
