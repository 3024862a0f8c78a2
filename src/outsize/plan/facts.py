"""What a plan is made from: numbers about a machine and a model, measured or traced, never guessed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from outsize.tiles.halo import Halo
from outsize.units import Size, parse_size

if TYPE_CHECKING:
    from outsize.plan.times import Learnt, Rates


@dataclass(frozen=True)
class Machine:
    """The device that computes, and the host it sits in."""

    device: str  # "cpu" or "cuda:0"
    name: str
    memory_bytes: int  # of the device; on a CPU that of the host
    free_bytes: int
    num_cores: int
    host_free_bytes: int
    # of what it has, that tensors can fill before the allocator has nothing left; None: not seen in a real step
    usable_share: float | None = None

    @property
    def kind(self) -> str:
        """The device without its number."""
        return self.device.partition(":")[0]

    @property
    def limit_key(self) -> str:
        """The key of a job's limits that bounds its memory."""
        return "host_memory" if self.device == "cpu" else "gpu_memory"

    @property
    def spoken(self) -> str:
        """Its name in a sentence: that of a CPU says nothing to anyone."""
        return "this machine" if self.device == "cpu" else self.name


@dataclass(frozen=True)
class WindowFacts:
    """One window going through the model for prediction: what does not and what does grow with it."""

    window_px: int  # side of the window that was looked at
    weights_bytes: int  # parameters and buffers
    fixed_bytes: int  # besides: copies of weights in another precision
    predict_bytes_per_px: float
    predict_flops_per_px: float
    fixed_s: float | None  # None: the rates of the machine are not known
    predict_s_per_px: float | None
    host_s: float = 0.0  # for the host to call all operations, while the device works; no window takes less

    def peak_bytes(self, num_px: float) -> int:
        """Return what windows of so many pixels need, weights included."""
        return int(self.weights_bytes + self.fixed_bytes + self.predict_bytes_per_px * num_px)

    def seconds(self, num_px: float) -> float | None:
        """Return the time of windows of so many pixels at once."""
        if self.fixed_s is None or self.predict_s_per_px is None:
            return None
        return max(self.host_s, self.fixed_s + self.predict_s_per_px * num_px)


@dataclass(frozen=True)
class TrainFacts:
    """One plain training step, summed up."""

    batch: int
    side_px: Size
    peak_bytes: int
    saved_bytes: int  # what autograd keeps between forward and backward
    weights_bytes: int  # with gradients and the optimizer's state
    flops: int
    moved_bytes: int
    num_ops: int


@dataclass(frozen=True)
class Facts:
    """All that is known before anything is decided."""

    machine: Machine
    window: WindowFacts
    halo: Halo
    rates: Rates | None = None
    train: TrainFacts | None = None
    learnt: Learnt | None = None  # by a real step on this machine

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; of what was learnt without that of each operation, which are hundreds of numbers."""
        learnt = None if self.learnt is None else replace(self.learnt, workspaces={}, paces={})
        return asdict(replace(self, learnt=learnt))


def facts_from_dict(tree: dict[str, Any]) -> Facts:
    """Read facts back that were written whole, with all that was learnt."""
    from outsize.plan.times import Learnt, Rates
    from outsize.tiles.halo import halo_from_dict

    rates, train, learnt = tree["rates"], tree["train"], tree["learnt"]
    return Facts(
        machine=Machine(**tree["machine"]),
        window=WindowFacts(**tree["window"]),
        halo=halo_from_dict(tree["halo"]),
        rates=None if rates is None else Rates(**rates),
        train=None if train is None else TrainFacts(**{**train, "side_px": parse_size(train["side_px"])}),
        learnt=None if learnt is None else Learnt(**{**learnt, "side_px": parse_size(learnt["side_px"])}),
    )
