"""A plan: one optional setting per strategy, why it was chosen, and what was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from outsize.plan.step import Key
from outsize.tiles.grid import cover, shards
from outsize.tiles.halo import Halo, Reach
from outsize.tiles.window import Tile

T = TypeVar("T")


@dataclass(frozen=True)
class Tiling:
    """How a scene is cut: cores kept, halos read and thrown away."""

    core_px: int
    halo_before_px: tuple[int, int]  # rows, columns; multiples of the stride
    halo_after_px: tuple[int, int]
    stride_px: int
    pads: bool = (
        True  # zeros past bottom and right fill a scene up to the stride; False: windows end with the scene
    )

    def cover(self, height: int, width: int) -> tuple[Tile, ...]:
        """Cut a scene into tiles."""
        return cover(height, width, self.core_px, self.halo, pads=self.pads)

    def is_one(self, height: int, width: int) -> bool:
        """Whether a scene is one window."""
        return self.core_px >= max(height, width)

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
    """What is recomputed in backward instead of being kept."""

    saved: tuple[Key, ...] = ()  # tensors, each made by cheap operations from others that are kept
    blocks: tuple[str, ...] = ()  # modules that keep only what goes into them
    costly: tuple[tuple[str, int], ...] = ()  # module and call of convolutions that may run again for `saved`
    # For each of `saved`: made on the way to a tensor that was saved at most so many later, it stays for its own use,
    # else it is recomputed then. (): as is usual.
    waits: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlannedSwap:
    """A saved storage that waits in host memory: when it leaves the device, and when it begins to come back."""

    key: Key  # of the first saved tensor that lies in it; its copy out begins when that is packed
    size_bytes: int
    release: Key | None  # its memory is given back when this one is packed; None: at the end of forward
    fetch: Key | None  # its copy back begins when this one is first unpacked; None: when it is needed
    late: bool = (
        False  # True: its memory is not given back when `release` is packed, but when it is first unpacked
    )


@dataclass(frozen=True)
class Swap:
    """What is moved to host memory between forward and backward."""

    moved: tuple[PlannedSwap, ...]  # in the order that they come back
    pinned_bytes: int  # the most that lies in host memory at once
    # None: what `moved` names, when it says. Else everything that is saved, each as soon as it can, and back in reverse
    # order; so many bytes may wait on the device.
    ahead_bytes: int | None = None


@dataclass(frozen=True)
class Compile:
    """Modules that are compiled, each by itself. Dropout inside of them draws other numbers than it does plain."""

    paths: tuple[str, ...]  # none lies in another
    activation_budget: float | None = (
        None  # share of what a block saves, 0 to 1; None: as the compiler does it
    )


@dataclass(frozen=True)
class Fuse:
    """Layers that are run in another way than torch's, most by kernels of our own; by the paths of their modules."""

    norms_with_relu: tuple[str, ...] = ()  # batch norms, and the ReLU behind them at once
    norms: tuple[str, ...] = ()  # batch norms alone
    pools: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()  # convolutions of two tensors side by side, whose gradients are found apart
    columns: tuple[str, ...] = ()  # convolutions of rows far apart, which are run on folded pictures
    enlargings: tuple[str, ...] = ()  # bilinear ones, whose backward is two matrix products
    shifts: tuple[tuple[str, str], ...] = ()  # a join, and the layer before it whose bias it adds
    # what joins and enlarges for convolutions, which make it for some samples at a time: only where memory is short
    later: tuple[str, ...] = ()

    @property
    def why_later(self) -> str:
        """Say what is made by slices, and why."""
        more = f" and {len(self.later) - 1} more" if len(self.later) > 1 else ""
        what = f"what '{self.later[0]}'{more} joins or enlarges" if self.later else "nothing"
        return f"nothing else fits: {what} is made by slices for what reads it"


@dataclass(frozen=True)
class Offload:
    """Weights, gradients and the optimizer's state are in host memory, and the optimizer runs there."""

    blocks: tuple[str, ...]  # paths of modules that come to the device one by one; the rest come together
    host_bytes: int = 0  # that all of it takes
    device_bytes: int = 0  # that come and go there, in place of weights, gradients and state


@dataclass(frozen=True)
class Replicate:
    """Ranks have the same weights, and each keeps the optimizer's state of some of them."""

    shards: int  # of the state, one on each rank


@dataclass(frozen=True)
class Spatial:
    """Each picture lies on several ranks, in a grid of so many rows and columns of them."""

    grid: tuple[int, int]
    picture_px: tuple[int, int]  # height, width
    stride_px: int  # parts begin at multiples of it
    # None: layers exchange their borders. Else every rank recomputes what lies so far around its part: rows, columns
    halo_before_px: tuple[int, int] | None = None
    halo_after_px: tuple[int, int] | None = None

    @property
    def num(self) -> int:
        """How many ranks share a picture."""
        return self.grid[0] * self.grid[1]

    @property
    def exchanges(self) -> bool:
        """Whether layers exchange their borders."""
        return self.halo_before_px is None

    def tiles(self) -> tuple[Tile, ...]:
        """Return what each of the ranks has of a picture, and what it reads for it."""
        halo = None
        if self.halo_before_px is not None and self.halo_after_px is not None:
            sides = zip(self.halo_before_px, self.halo_after_px, strict=True)
            rows, cols = (Reach(*each) for each in sides)
            halo = Halo(rows, cols, self.stride_px)
        return shards(*self.picture_px, self.grid, self.stride_px, halo)


@dataclass(frozen=True)
class PlannedStage:
    """Layers that run one after another on one rank, and how long they take for one micro-batch."""

    rank: int
    begins: tuple[str, int]  # module and call of the first layer; of the first stage ("", 0)
    forward_s: float = 1.0
    backward_s: float = 2.0  # without what is recomputed
    recomputes: bool = False  # keeps what comes in alone, and runs forward again before backward
    kept_bytes: int = 0  # for each micro-batch on its way
    fixed_bytes: int = (
        0  # weights, gradients, the optimizer's state; what is saved where the stage runs again
    )
    weights_s: float | None = None  # of backward, what finds gradients of weights
    split_s: float = 0.0  # that backward takes longer where these are found apart


@dataclass(frozen=True)
class Pipeline:
    """A model in stages over several ranks, through which the micro-batches of a step go."""

    stages: tuple[PlannedStage, ...]
    num_micro: int
    schedule: str = "1f1b"  # as `plan.simulate` knows them
    messages: tuple[tuple[int, int, float], ...] = ()  # from a stage to a stage, in so many seconds
    copies_overlap: bool = True
    optimizer_bytes: tuple[int, ...] = ()  # by rank, what the optimizer keeps
    ahead: int | None = (
        None  # micro-batches on their way beyond the stages behind one's own; None: as is usual
    )
    longest_first: bool = False  # of what a rank may do, what has the longest way to go; else backward

    @property
    def num_ranks(self) -> int:
        """How many ranks have the model together; folded or interleaved, a rank has several stages."""
        return 1 + max(stage.rank for stage in self.stages)


@dataclass(frozen=True)
class Passes:
    """A model that looks at the whole picture goes over its tiles several times, and is exact so."""

    num: int
    num_pools: int  # operations that look at the whole picture
    core_px: int  # of the last pass; earlier ones may have larger cores
    tile_bytes: int  # that the largest tile of any pass takes
    kept_bytes: int  # of maps between passes, at most at once, of the largest picture
    on_disk: bool  # they are kept beside the result; else in host memory
    work: float  # numbers that all passes make, in those of the whole picture
    stride_px: int = 1  # a picture is filled up to a multiple of it, where the model takes no other


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
    swap: Swap | None = None
    pipeline: Pipeline | None = None
    replicate: Replicate | None = None
    compile: Compile | None = None
    fuse: Fuse | None = None
    offload: Offload | None = None
    passes: Passes | None = None
    spatial: Spatial | None = None
    graph: bool = (
        False  # recorded once as a CUDA graph and replayed: one call of the host in place of thousands
    )
    paged: bool = False  # and has room only so: its memory is given by pages, not in one piece
    step_s: float | None = None  # predicted, for one batch

    def plain(self) -> Plan:
        """Return the plan of the same step without any strategy, by the same kernels."""
        same = ("step_s", "fuse")
        strategies = [each.name for each in fields(self) if each.default is None and each.name not in same]
        nothing: dict[str, Any] = dict.fromkeys(strategies)
        fuse = None if self.fuse is None else replace(self.fuse, later=())
        return replace(self, graph=False, paged=False, fuse=fuse, **nothing)

    @property
    def is_recordable(self) -> bool:
        """Whether its step may be recorded as one CUDA graph: not in parts, which the host adds up, nor compiled."""
        others = (self.tiles, self.micro_batches, self.compile, self.offload, self.pipeline, self.replicate)
        return all(each is None for each in (*others, self.spatial))

    @property
    def is_tight(self) -> bool:
        """Whether it gives something up to save memory, or fills it so far that nothing else has room."""
        return self.recompute is not None or self.swap is not None or self.paged

    @property
    def hosted_bytes(self) -> int:
        """What it keeps in host memory that else would be on the device: tensors that wait there, weights that stay."""
        moved_bytes = 0 if self.swap is None else self.swap.pinned_bytes
        return moved_bytes + (0 if self.offload is None else self.offload.host_bytes)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def unplanned(**settings: Any) -> Plan:
    """Return a plan of these settings that nobody chose: it fits whatever there is, or runs out of memory."""
    return Plan("train", 1, limit_bytes=1, peak_bytes=1, exact=True, why=(), **settings)


def plan_from_dict(tree: dict[str, Any]) -> Plan:
    """Read the JSON form back."""
    tiles = tree["tiles"]
    if tiles is not None:
        pairs = {key: tuple(tiles[key]) for key in ("halo_before_px", "halo_after_px")}
        tiles = Tiling(**{**tiles, **pairs})
    recompute = tree["recompute"]
    if recompute is not None:
        costly = tuple((path, call) for path, call in recompute.get("costly", recompute.get("dear", ())))
        waits = tuple(recompute.get("waits", ()))
        recompute = Recompute(tuple(map(_key, recompute["saved"])), tuple(recompute["blocks"]), costly, waits)
    swap = tree["swap"]
    if swap is not None:
        swap = Swap(tuple(map(_moved, swap["moved"])), swap["pinned_bytes"], swap.get("ahead_bytes"))
    compiled = tree["compile"]
    if compiled is not None:
        compiled = Compile(tuple(compiled["paths"]), compiled["activation_budget"])
    fuse = tree.get("fuse")
    if fuse is not None:
        shifts = tuple((join, layer) for join, layer in fuse.get("shifts", ()))
        fuse = Fuse(**{**{name: tuple(paths) for name, paths in fuse.items()}, "shifts": shifts})
    offload = tree.get("offload")
    if offload is not None:
        offload = Offload(**{**offload, "blocks": tuple(offload["blocks"])})
    pipeline = tree.get("pipeline")
    if pipeline is not None:
        stages = tuple(
            PlannedStage(**{**each, "begins": tuple(each["begins"])}) for each in pipeline["stages"]
        )
        messages = tuple((one, other, seconds) for one, other, seconds in pipeline["messages"])
        pipeline = Pipeline(
            **{
                **pipeline,
                "stages": stages,
                "messages": messages,
                "optimizer_bytes": tuple(pipeline["optimizer_bytes"]),
            }
        )
    spatial = tree.get("spatial")
    if spatial is not None:
        spatial = Spatial(**{key: _as_held(value) for key, value in spatial.items()})
    rejected = tuple(Rejected(**item) for item in tree["rejected"])
    strategies = {
        "tiles": tiles,
        "recompute": recompute,
        "swap": swap,
        "compile": compiled,
        "fuse": fuse,
        "offload": offload,
        "pipeline": pipeline,
        "replicate": _flat(Replicate, tree.get("replicate")),
        "passes": _flat(Passes, tree.get("passes")),
        "spatial": spatial,
    }
    return Plan(**{**tree, **strategies, "rejected": rejected, "why": tuple(tree["why"])})


def _flat(kind: type[T], tree: dict[str, Any] | None) -> T | None:
    """Read a setting of plain numbers."""
    return None if tree is None else kind(**tree)


def _as_held(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _moved(tree: dict[str, Any]) -> PlannedSwap:
    release, fetch = (None if tree[name] is None else _key(tree[name]) for name in ("release", "fetch"))
    return PlannedSwap(_key(tree["key"]), tree["size_bytes"], release, fetch, tree.get("late", False))


def _key(tree: Sequence[Any]) -> Key:
    path, call, ordinal = tree
    return path, call, ordinal
