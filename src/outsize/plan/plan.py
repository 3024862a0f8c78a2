"""A plan: one optional setting per strategy, why it was chosen, and what was rejected."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from outsize.plan.step import Key
from outsize.tiles.halo import Halo, Reach


@dataclass(frozen=True)
class Tiling:
    """How a scene is cut: cores kept, halos read and thrown away."""

    core_px: int
    halo_before_px: tuple[int, int]  # rows, columns; multiples of the stride
    halo_after_px: tuple[int, int]
    stride_px: int

    @classmethod
    def of(cls, core_px: int, halo: Halo) -> Tiling:
        """Return the tiling with a core, its halo rounded up to the stride."""
        need = halo.aligned
        before, after = (need.rows.before_px, need.cols.before_px), (need.rows.after_px, need.cols.after_px)
        return cls(core_px, before, after, need.stride_px)

    @property
    def halo(self) -> Halo:
        """The halo in the form that the grid takes."""
        rows, cols = (Reach(*pair) for pair in zip(self.halo_before_px, self.halo_after_px, strict=True))
        return Halo(rows, cols, self.stride_px)


@dataclass(frozen=True)
class Recompute:
    """What is made again on the way back instead of being kept."""

    saved: tuple[Key, ...] = ()  # tensors, each made by cheap operations from others that are kept
    blocks: tuple[str, ...] = ()  # modules that keep only what goes into them


@dataclass(frozen=True)
class Compile:
    """Modules that are compiled, each by itself. Dropout inside of them draws other numbers than it does plain."""

    paths: tuple[str, ...]  # none lies in another
    activation_budget: float | None = (
        None  # share of what a block saves, 0 to 1; None: as the compiler does it
    )


@dataclass(frozen=True)
class Rejected:
    """Something that was considered and not taken."""

    what: str
    why: str


@dataclass(frozen=True)
class Plan:
    """How to run one kind of step. A strategy whose setting is None is not used."""

    purpose: str  # "train" or "predict"
    batch: int  # samples (training) or tiles (prediction) at once
    limit_bytes: int
    peak_bytes: int  # predicted
    exact: bool  # False: the answer may differ from that of the whole, `why` says by what
    why: tuple[str, ...]
    rejected: tuple[Rejected, ...] = ()
    tiles: Tiling | None = None
    micro_batches: int | None = None
    recompute: Recompute | None = None
    swap: None = None
    pipeline: None = None
    replicate: None = None
    compile: Compile | None = None
    step_s: float | None = None  # predicted, for one batch

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def plan_from_dict(tree: dict[str, Any]) -> Plan:
    """Read the JSON form back."""
    tiles = tree["tiles"]
    if tiles is not None:
        pairs = {key: tuple(tiles[key]) for key in ("halo_before_px", "halo_after_px")}
        tiles = Tiling(**{**tiles, **pairs})
    recompute = tree["recompute"]
    if recompute is not None:
        keys = tuple((path, call, ordinal) for path, call, ordinal in recompute["saved"])
        recompute = Recompute(keys, tuple(recompute["blocks"]))
    compiled = tree["compile"]
    if compiled is not None:
        compiled = Compile(tuple(compiled["paths"]), compiled["activation_budget"])
    rejected = tuple(Rejected(**item) for item in tree["rejected"])
    strategies = {"tiles": tiles, "recompute": recompute, "compile": compiled}
    return Plan(**{**tree, **strategies, "rejected": rejected, "why": tuple(tree["why"])})
