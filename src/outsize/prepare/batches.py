"""Hands pieces to workers, several in a call, and repeats what is lost with a worker.

a piece   0.02 s      a call costs a scheduler some 15 ms, so one call makes pieces for about a second
a call    ##########
calls     two for each worker: one is made, the next is there when it is done; the last ones are smaller
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from outsize import stopping
from outsize.errors import explain
from outsize.prepare.piece import Piece, PieceMade, make_pieces
from outsize.prepare.workers import WorkerLost, Workers

_CALL_S = 1.0
_CALLS_EACH = 2  # of a worker, made or on their way
_LOST_BESIDE = 2  # times that a piece is lost with others beside it; then it is made alone


def make_all(pieces: Sequence[Piece], by: Workers, folder: Path, version: str) -> Iterator[PieceMade]:
    """Yield what became of each piece, in the order in which they are done.

    A piece whose worker dies is made again, at last with no other beside it: if that one is lost too, it counts as
    one that cannot be made.
    """
    work = _Todo(deque(pieces))
    calls: dict[Future[list[PieceMade]], list[Piece]] = {}
    while work.is_left or calls:
        while batch := work.next_batch(by.num, len(calls)):
            calls[by.submit(make_pieces, batch, folder, version)] = batch
        for call in by.done(calls):
            batch = calls.pop(call)
            try:
                made = by.result(call)
            except WorkerLost:
                made = work.again(batch)
            work.note(made)
            yield from made
        stopping.check()


@dataclass
class _Todo:
    """What is still to be made, how long a piece takes, and what was lost with a worker."""

    waiting: deque[Piece]
    alone: deque[Piece] = field(default_factory=deque)  # to be made with nothing beside
    losses: Counter[str] = field(default_factory=Counter)
    num_made: int = 0
    taken_s: float = 0.0

    @property
    def is_left(self) -> bool:
        """Whether something is still to be handed out."""
        return bool(self.waiting or self.alone)

    def next_batch(self, num_workers: int, num_calls: int) -> list[Piece]:
        """Take the pieces of the next call; none where enough calls are on their way."""
        if not self.waiting:
            return [self.alone.popleft()] if self.alone and not num_calls else []
        places = _CALLS_EACH * max(num_workers, 1)
        if num_calls >= places:
            return []
        fair = -(-len(self.waiting) // places)
        for_a_call = round(_CALL_S * self.num_made / self.taken_s) if self.taken_s else 1
        return [self.waiting.popleft() for _ in range(max(1, min(fair, for_a_call)))]

    def note(self, made: Sequence[PieceMade]) -> None:
        """Learn from what was made how long a piece takes."""
        self.num_made += len(made)
        self.taken_s += sum(each.taken_s for each in made)

    def again(self, lost: Sequence[Piece]) -> list[PieceMade]:
        """Take back what was lost; return those that were lost alone as what cannot be made."""
        given_up = []
        for piece in lost:
            self.losses[piece.name] += 1
            if self.losses[piece.name] > _LOST_BESIDE:
                need, remedy = "one that lives", "give it more memory, or leave the file out"
                found = f"{self.losses[piece.name]} times, at last with no other beside"
                why = explain(f"the process that made {piece.name} was killed", found, need, remedy)
                given_up.append(PieceMade(piece.name, why=why))
            elif self.losses[piece.name] == _LOST_BESIDE:
                self.alone.append(piece)
            else:
                self.waiting.appendleft(piece)
        return given_up
