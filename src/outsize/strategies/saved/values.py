"""What a storage holds from one operation to the next: a tensor that is kept, or a recipe to recompute it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from outsize.measure.tensors import without_history
from outsize.strategies.overwritten import changed

if TYPE_CHECKING:
    from outsize.plan.step import Key
    from outsize.strategies.saved.recipes import CallRecipe, Normed
    from outsize.strategies.swap import MovedStorage, Trip

Geometry = tuple[torch.Size, tuple[int, ...], int | torch.SymInt]  # size, stride, offset in the storage


# A tensor that is made on the way to another waits for its own use if that lies at most this many saved tensors
# (parameters and buffers not counted) before the one that is asked for, where no plan says it. Further away it would be
# in the way: a skip of a U-Net is used at both ends of backward, and to hold it in between would give back what making
# it again freed.
NEAR_PACKS = 24


class SavedUse(NamedTuple):
    """Where a tensor is wanted back: its place in the order of saving, and the module that saved it."""

    pack: int
    module: str


class Value:
    """What a storage holds from one operation that writes it to the next: a tensor, or a recipe for it.

    conv -> [value 1: tensor, kept] -> batch norm -> [value 2: recipe] -> relu_ -> [value 3: recipe]
                                                      `--- one storage, two versions ---'
    """

    __slots__ = (
        "__weakref__", "away", "cached", "device", "dtype", "geometry", "index", "last_pack", "num_pending", "recipe",
        "settled", "size_bytes", "tensor", "version", "waits", "weak",
    )  # fmt: skip

    def __init__(
        self, like: Tensor, version: int, recipe: CallRecipe | Normed | None = None, index: int = 0
    ) -> None:
        self.geometry: Geometry = (like.shape, like.stride(), like.storage_offset())
        self.dtype, self.device = like.dtype, like.device
        self.size_bytes = like.untyped_storage().nbytes()
        self.version = version
        self.recipe = recipe
        self.index = index  # which output of the recipe
        self.tensor: Tensor | None = None if recipe else like
        self.weak: weakref.ref[Tensor] | None = None  # the tensor where it is not held
        self.away: MovedStorage | None = None  # where the tensor is that was kept and moved to host memory
        self.settled = False  # True: no tensor held here or below knows its gradient function (a cycle)
        self.num_pending = 0  # times it was saved and not asked for yet
        self.last_pack = -1
        self.waits = NEAR_PACKS  # made for one that was saved so many later, it stays for its own use
        self.cached: Tensor | None = None

    @property
    def depth(self) -> int:
        """How many operations in a row make it from tensors that are there."""
        return self.recipe.depth if self.recipe else 0

    def keep(self, tensor: Tensor) -> None:
        """Hold the tensor itself, or a view of it; how it was made is then of no interest."""
        tensor = without_history(tensor)
        same = geometry_of(tensor) == self.geometry
        self.tensor = tensor if same else tensor.as_strided(*self.geometry)
        self.recipe, self.weak, self.settled = None, None, True

    def watch_only(self) -> None:
        """Do not hold the tensor that a recipe starts from, as long as nobody saves it."""
        if self.tensor is not None and not self.settled:
            self.weak, self.tensor = weakref.ref(self.tensor), None

    def hold(self) -> bool:
        """Hold again what is only watched; False where it is gone."""
        if self.weak is not None and self.tensor is None:
            self.tensor = self.weak()
            self.weak = None if self.tensor is not None else self.weak
            return self.tensor is not None
        return True

    def settle(self) -> bool:
        """Hold all that the recipe starts from; False where some of it was overwritten already, or is gone."""
        if self.settled:
            return True
        found = list(_walk(self, stop=lambda value: value.settled and value.recipe is not None))
        if any(type(value) is Value and not value.hold() for value in found):
            return False
        if any(value.overwritten for value in found):
            return False
        for value in found:
            if type(value) is Value and not value.settled:
                value.tensor = None if value.tensor is None else without_history(value.tensor)
                value.settled = True
        return True

    @property
    def overwritten(self) -> bool:
        """Whether an in-place operation changed the tensor that is held."""
        if self.away is not None:
            return self.away.overwritten
        return self.tensor is not None and self.tensor._version != self.version

    def make(self, use: SavedUse) -> tuple[Tensor, bool]:
        """Return the tensor, and whether nobody else holds it."""
        if self.tensor is not None:
            if self.tensor._version != self.version:
                raise changed(use.module, self.version, self.tensor._version)
            return self.tensor, False
        if self.cached is not None:
            return self.cached, False
        if self.away is not None:
            return self.away.back(), False
        assert self.recipe is not None
        made = self.recipe.make(use)
        if isinstance(made, Tensor):
            result = self._laid_out(made)
        else:
            result = self._laid_out(made.pop(self.index))
            self.recipe.hand_out(made, use)
        if self.num_pending > 0 and use.pack - self.last_pack <= self.waits:
            self.cached = result
        return result, self.cached is None

    def take(self, made: Tensor, use: SavedUse) -> None:
        """Hold what another output's making made of this one too, if it is wanted soon."""
        if self.tensor is None and self.num_pending > 0 and use.pack - self.last_pack <= self.waits:
            self.cached = self._laid_out(made)

    def done(self) -> None:
        """Count one use; after the last nothing is held for another."""
        self.num_pending -= 1
        if self.num_pending == 0:
            self.cached = None

    @property
    def passing(self) -> bool:
        """Whether it is needed only on the way to another value, and would have to be made for that."""
        away = self.away is not None
        return self.tensor is None and not away and self.cached is None and self.num_pending == 0

    def _laid_out(self, made: Tensor) -> Tensor:
        """Return it in the memory format of the first time: other kernels may choose another."""
        size, stride, _ = self.geometry
        return made if made.stride() == stride else made.new_empty_strided(size, stride).copy_(made)


class Kept:
    """A tensor that is kept as it is, and that autograd holds in this form: a value, but quicker to make."""

    __slots__ = ("__weakref__", "away", "module", "tensor", "version")

    recipe = cached = None
    settled, depth, passing = True, 0, False

    def __init__(self, tensor: Tensor, version: int, module: str) -> None:
        self.tensor: Tensor | None = tensor  # without its history
        self.version, self.module = version, module
        self.away: MovedStorage | None = None  # where it is if it was moved to host memory

    @property
    def geometry(self) -> Geometry:
        """Size, stride and offset."""
        return self.away.geometry if self.away is not None else geometry_of(self._there)

    @property
    def dtype(self) -> torch.dtype:
        """Type of its numbers."""
        return self.away.dtype if self.away is not None else self._there.dtype

    @property
    def device(self) -> torch.device:
        """Where it is used."""
        return self.away.device if self.away is not None else self._there.device

    @property
    def size_bytes(self) -> int:
        """Memory of its whole storage."""
        return self.away.num_bytes if self.away is not None else self._there.untyped_storage().nbytes()

    @property
    def overwritten(self) -> bool:
        """Whether an in-place operation changed the tensor that is held."""
        return self.away.overwritten if self.away is not None else self._there._version != self.version

    def make(self, use: SavedUse) -> tuple[Tensor, bool]:
        """Return the tensor, which others hold too."""
        if self.away is not None:
            return self.away.back(), False
        if self._there._version != self.version:
            raise changed(use.module, self.version, self._there._version)
        return self._there, False

    @property
    def _there(self) -> Tensor:
        assert self.tensor is not None
        return self.tensor


def send(value: Value | Kept, away: MovedStorage) -> None:
    """Leave a kept tensor to who moves it: all that hold the value get the tensor back from there."""
    value.away, value.tensor = away, None


class Slot:
    """What autograd holds in place of a tensor that is recomputed, or that is a view of one that is kept."""

    __slots__ = ("geometry", "module", "pack", "pending", "value")

    def __init__(self, value: Value | Kept, geometry: Geometry | None, pack: int, module: str) -> None:
        self.value, self.geometry, self.pack, self.module = value, geometry, pack, module
        self.pending = type(value) is Value
        if type(value) is Value:
            value.num_pending += 1
            value.last_pack = pack


class Signal(NamedTuple):
    """What autograd holds in place of a tensor whose use is the sign to fetch others."""

    held: Slot | Kept
    key: Key
    trip: Trip


def geometry_of(tensor: Tensor) -> Geometry:
    """Return size, stride and offset."""
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def leaves_of(value: Value | Kept, stop: Callable[[Value | Kept], bool]) -> tuple[list[Value | Kept], int]:
    """Return the values a recipe starts from, and how many operations it has; nothing is asked of what stops it."""
    found = list(_walk(value, stop))
    leaves = [each for each in found if each.recipe is None]
    return leaves, len({id(each.recipe) for each in found if each.recipe is not None})


def sites_of(value: Value | Kept, stop: Callable[[Value | Kept], bool]) -> set[Any]:
    """Return where the operations of a recipe ran; our own tell of themselves, and nobody has to watch for them."""
    sites = {each.recipe.site for each in _walk(value, stop) if each.recipe is not None}
    return sites - {None}


def _walk(value: Value | Kept, stop: Callable[[Value | Kept], bool]) -> Iterator[Value | Kept]:
    todo: list[Value | Kept] = [value]
    seen = {id(value)}
    while todo:
        each = todo.pop()
        if stop(each):
            continue
        yield each
        for source in each.recipe.sources if each.recipe else ():
            if id(source.value) not in seen:
                seen.add(id(source.value))
                todo.append(source.value)
