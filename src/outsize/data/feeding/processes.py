"""Processes that make batches of tensors beside a training."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from outsize import stopping
from outsize.data.feeding.loader import worker_died
from outsize.data.feeding.parcels import Packer, Parcel, forget
from outsize.data.opened import can_share_decoded
from outsize.errors import OutsizeError, RunError, explain

Item = TypeVar("Item")
Key = TypeVar("Key")

_BATCHES_EACH = 2  # that a process makes ahead
# of batches, in the memory of a process: it may make another while the one it made before those ahead is copied from
_PLACES_EACH = _BATCHES_EACH + 1
_LOOK_S, _PATIENCE_S = 1, 5
_TIMED_OUT = "DataLoader timed out"
_SHARED = Path("/dev/shm")


class BatchProcesses(Generic[Key, Item]):
    """Processes that make batches until closed; tensors come from them through shared memory.

    They begin when the first batch is asked for, and keep what they have opened. `make` is pickled: a copy of this
    process would inherit the locks of GDAL's threads, but not the threads that open them, and wait forever.
    `pin` brings tensors to page-locked memory on arrival.
    """

    def __init__(self, make: Callable[[Key], Item], *, num_processes: int, pin: bool) -> None:
        self._keys = _Keys[Key]()
        self._owner = uuid.uuid4().hex
        self._workers: list[BaseProcess] = []
        self._threads: list[Thread] = []  # that pin
        self._loader: DataLoader[Item] | None = DataLoader(
            _Made(make, self._owner),
            batch_size=None,
            collate_fn=_as_it_is,  # or arrays would arrive as tensors
            sampler=self._keys,
            num_workers=num_processes,
            prefetch_factor=_BATCHES_EACH,
            persistent_workers=True,
            pin_memory=pin,
            timeout=_LOOK_S,  # then it looks whether all processes are alive, by itself every 5 s only
            worker_init_fn=_begin_process,
            multiprocessing_context="forkserver",
            generator=torch.Generator(),  # or the draw of a seed that is not used here would change those that are
        )

    def make(self, keys: Iterable[Key]) -> Generator[Item, None, None]:
        """Yield make(key) for each key in order."""
        items = self._begin(keys)
        while True:
            try:
                item = next(items)
                if isinstance(item, Parcel):  # one to be pinned was opened on arrival
                    item = item.open(Tensor.clone)
            except StopIteration:
                return
            except RuntimeError as error:
                if _TIMED_OUT in str(error):
                    self._look_at_threads()
                    continue
                raise (
                    worker_died(error, self._workers) if "DataLoader worker" in str(error) else error
                ) from error
            except FileNotFoundError as error:  # its memory went with it, before this was opened
                raise worker_died(error, self._workers) from error
            if isinstance(item, _Failed):
                del (
                    items
                )  # the error will hold this frame, and processes end when nobody holds what they give
                raise item.error
            yield item

    def close(self) -> None:
        """End the processes."""
        self._loader = None
        forget(self._owner)
        for each in self._workers:
            each.join(_PATIENCE_S)
            if each.exitcode is None:  # it does not end by SIGTERM, see `shielded`
                each.kill()
                each.join()
        self._workers, self._threads = [], []

    def _begin(self, keys: Iterable[Key]) -> Iterator[Item]:
        assert self._loader is not None, "closed"
        self._keys.keys = keys
        if self._workers:
            return iter(self._loader)
        before = {*multiprocessing.active_children(), *threading.enumerate()}
        with stopping.shielded():
            items = iter(self._loader)
        self._workers = [each for each in multiprocessing.active_children() if each not in before]
        self._threads = [each for each in threading.enumerate() if each not in before]
        return items

    def _look_at_threads(self) -> None:
        for each in self._threads:
            if not each.is_alive():
                found, need = f"{each.name} no longer runs", "it until the end"
                remedy = "give the job more host memory, or set train.workers lower"
                raise RunError(explain("the thread that pins batches ended", found, need, remedy))


def can_share(batch_bytes: int, num_processes: int) -> bool:
    """Say whether there is shared memory for the batches made ahead; many containers have no more than 64 MiB."""
    if not _SHARED.is_dir():
        return False
    return shutil.disk_usage(_SHARED).free >= 2 * batch_bytes * num_processes * _BATCHES_EACH


def _begin_process(_: int) -> None:
    stopping.end_with_parent()


def _as_it_is(item: Item) -> Item:
    return item


class _Keys(Sampler[Key]):
    def __init__(self) -> None:
        self.keys: Iterable[Key] = ()

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
