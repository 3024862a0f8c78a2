"""Tells which rank was lost, and in which phase: each writes into the store what it does, and a beat while it lives.

Who has started ranks on its own machine reads it in a file of each, for a store may be gone with the rank.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import RanksError, explain

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

BEAT_S = 0.5
LOST_ANOTHER = 75  # exit code of a rank that ends for another is gone, which its launcher sees and reports
PHASES = "OUTSIZE_PHASES"  # names the folder where ranks of one machine say what they do
_MISSED = 5  # beats of this rank in which a silent one has none: on a busy machine both are slow


@dataclass(frozen=True)
class Phases:
    """What ranks of this machine did last, as the process sees it that has started them."""

    folder: Path

    @classmethod
    def made(cls) -> Phases:
        """Make the folder that ranks started from here write into."""
        os.environ[PHASES] = tempfile.mkdtemp(prefix="outsize-ranks-")
        return cls(Path(os.environ[PHASES]))

    def of(self, rank: int) -> str:
        """Say what a rank did last."""
        try:
            return (self.folder / str(rank)).read_text() or "start"
        except OSError:
            return "start"

    def clear(self) -> None:
        """Remove what they have written."""
        os.environ.pop(PHASES, None)
        shutil.rmtree(self.folder, ignore_errors=True)


class Pulse:
    """The beats of this rank, written by a thread, and a look at those of all."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._over = threading.Event()
        self.at("start")
        self._thread = threading.Thread(target=self._beat, name="outsize-pulse", daemon=True)
        self._thread.start()

    def at(self, phase: str) -> None:
        """Say what this rank does from now on."""
        self._store.set(f"phase/{self._rank}", phase)
        if PHASES in os.environ:
            Path(os.environ[PHASES], str(self._rank)).write_text(phase)

    def stop(self) -> None:
        """Beat no more."""
        self._over.set()
        self._thread.join()

    def silent(self) -> list[tuple[int, str]]:
        """Return the ranks that do not beat, and what they did last."""
        before = after = self._beats()
        while after[self._rank] < before[self._rank] + _MISSED and self._thread.is_alive():
            time.sleep(BEAT_S)
            after = self._beats()
        still = [rank for rank in range(self._size) if before[rank] == after[rank] and rank != self._rank]
        return [(rank, self._store.get(f"phase/{rank}").decode()) for rank in still]

    def _beats(self) -> list[int]:
        return [self._store.add(f"beat/{rank}", 0) for rank in range(self._size)]

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                self._store.add(f"beat/{self._rank}", 1)
            except RuntimeError:  # the store is gone, and with it who could read this
                return


def lost(pulse: Pulse, error: RuntimeError) -> RanksError:
    """Return the error that names who was lost; where the store does not answer, it is the rank that held it."""
    try:
        silent: Sequence[tuple[int, str]] = pulse.silent()
    except RuntimeError:
        silent = [(0, "an unknown phase, for it held the store")]
    who = ", ".join(f"rank {rank} in {phase}" for rank, phase in silent) or "nobody silent"
    found = f"{who} ({str(error).strip().splitlines()[0][:120]})"
    remedy = "look for its error on its machine; a training goes on from its last checkpoint with --resume"
    return RanksError(explain("another rank was lost", found, "all ranks to the end", remedy))
