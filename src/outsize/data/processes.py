"""Processes that make batches of tensors beside a training."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from outsize.data.decoded import can_share_decoded
from outsize.data.loader import worker_died
from outsize.data.parcels import Packer, Parcel, forget
from outsize.errors import OutsizeError

Item = TypeVar("Item")
Key = TypeVar("Key")

_BATCHES_EACH = 2  # that a process makes ahead
# of batches, in the memory of a process: it may make another while the one it made before those ahead is copied from
_PLACES_EACH = _BATCHES_EACH + 1
_SHARED = Path("/dev/shm")


class BatchProcesses(Generic[Key, Item]):
    """Processes that make batches until closed; tensors come from them through shared memory.

    They begin when the first batch is asked for, and keep what they have opened. `make` is pickled: a copy of this
    process would inherit the locks of GDAL's threads, but not the threads that open them, and wait for ever.
    `pin` brings tensors to page-locked memory on arrival.
    """

    def __init__(self, make: Callable[[Key], Item], *, num_processes: int, pin: bool) -> None:
        self._keys = _Keys[Key]()
        self._owner = uuid.uuid4().hex
        self._loader: DataLoader[Item] | None = DataLoader(
            _Made(make, self._owner),
            batch_size=None,
            collate_fn=_as_it_is,  # or arrays would arrive as tensors
            sampler=self._keys,
            num_workers=num_processes,
            prefetch_factor=_BATCHES_EACH,
            persistent_workers=True,
            pin_memory=pin,
            multiprocessing_context="forkserver",
            generator=torch.Generator(),  # or the draw of a seed that is not used here would change those that are
        )

    def make(self, keys: Sequence[Key]) -> Generator[Item, None, None]:
        """Yield make(key) for each key in order."""
        assert self._loader is not None, "closed"
        self._keys.keys = keys
        items = iter(self._loader)
        while True:
            try:
                item = next(items)
                if isinstance(item, Parcel):  # one to be pinned was opened on arrival
                    item = item.open(Tensor.clone)
            except StopIteration:
                return
            except RuntimeError as error:
                raise worker_died(error) if "DataLoader worker" in str(error) else error from error
            except FileNotFoundError as error:  # its memory went with it, before this was opened
                raise worker_died(error) from error
            if isinstance(item, _Failed):
                raise item.error
            yield item

    def close(self) -> None:
        """End the processes."""
        self._loader = None
        forget(self._owner)


def can_share(batch_bytes: int, num_processes: int) -> bool:
    """Say whether there is shared memory for the batches made ahead; many containers have no more than 64 MiB."""
    if not _SHARED.is_dir():
        return False
    return shutil.disk_usage(_SHARED).free >= 2 * batch_bytes * num_processes * _BATCHES_EACH


def _as_it_is(item: Item) -> Item:
    return item


class _Keys(Sampler[Key]):
    def __init__(self) -> None:
        self.keys: Sequence[Key] = ()

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys)


@dataclass(frozen=True)
class _Failed:
    """Stands for a batch that could not be made: the error comes through whole, not as the text of a traceback."""

    error: OutsizeError


class _Made(Dataset[Item], Generic[Key, Item]):
    def __init__(self, make: Callable[[Key], Item], owner: str) -> None:
        self._make, self._owner = make, owner
        self._packer: Packer | None = None  # of the process that makes

    def __getitem__(self, key: Key) -> Item | Parcel | _Failed:  # type: ignore[override]
        try:
            item = self._make(key)
        except OutsizeError as error:
            return _Failed(error)
        if not can_share_decoded():
            return item  # torch knows other ways
        if self._packer is None:
            self._packer = Packer(self._owner, _PLACES_EACH)
        return self._packer.pack(item)
