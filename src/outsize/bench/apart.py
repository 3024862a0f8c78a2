"""The step of a job in processes of their own: what differs between processes is part of what is measured.

this process    starts, asks by a pipe, waits
another one     torch loaded again, the model copied, steps run; answers by the pipe
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch
from torch import nn

from outsize.bench.measured_step import make_measured_step
from outsize.errors import RanksError, explain, one_line
from outsize.job import TrainSection
from outsize.tasks import task_of
from outsize.train.made_up import MadeUpStep, make_up_batch

START: Literal["spawn"] = "spawn"  # a copy of this process would share where its memory lies
_MOST_LETTERS = 300


@dataclass(frozen=True)
class GivenStep:
    """The training step of a job, as it goes to another process."""

    task: str
    model: nn.Module  # on the CPU
    section: TrainSection
    num_bands: int
    num_classes: int
    device_name: str
    bf16: bool

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return torch.device(self.device_name)

    def make(self) -> MadeUpStep:
        """Return the step, on a copy of the model and a batch of noise."""
        task = task_of(self.task)
        given = self.model, task, self.section, self.num_bands, self.num_classes, self.device
        return make_measured_step(*given, bf16=self.bf16)

    def with_batch(self, size: int) -> GivenStep:
        """Return the same step for another batch."""
        section = self.section.model_copy(update={"batch": size})
        return GivenStep(**{**vars(self), "section": section})

    def batch_for(self, step: MadeUpStep, size: int) -> MadeUpStep:
        """Return a step of this kind on another batch, with the same weights."""
        shape = (size, self.num_bands, *self.section.window_px)
        made = make_up_batch(self.model, task_of(self.task), self.section.loss, shape, self.num_classes)
        return MadeUpStep(**{**vars(step), "batch": made.to(self.device)})


@dataclass(frozen=True)
class _EndedEarly:
    """What a process says before it ends early."""

    why: str


class Talk:
    """What is said to a process that measures, and by it; what goes wrong there is an error here."""

    def __init__(self, pipe: Connection) -> None:
        self.send = pipe.send
        self._pipe = pipe

    def recv(self) -> Any:
        """Return its answer."""
        answer = self._pipe.recv()
        if isinstance(answer, _EndedEarly):
            raise _ended(answer.why)
        return answer


@contextmanager
def process(work: Callable[..., None], *given: Any) -> Iterator[Talk]:
    """Run `work(pipe, *given)` in a new process while the block talks to it; one that dies is an error there."""
    context = get_context(START)
    ours, theirs = context.Pipe()
    started = context.Process(target=_run, args=(work, theirs, *given), daemon=True)
    started.start()
    theirs.close()
    try:
        yield Talk(ours)
    except (EOFError, ConnectionError):
        started.join()
        raise _ended(f"exit code {started.exitcode}") from None
    except BaseException:
        started.terminate()
        raise
    finally:
        ours.close()  # it ends when nobody asks any more
        started.join()


def _run(work: Callable[..., None], pipe: Connection, *given: Any) -> None:
    try:
        work(pipe, *given)
    except (RuntimeError, ValueError) as error:  # of torch: memory that ran out, a batch that a layer refuses
        pipe.send(_EndedEarly(one_line(error)[:_MOST_LETTERS]))


def _ended(found: str) -> RanksError:
    remedy = "where memory is short, measure less at once"
    return RanksError(explain("a process that measures ended", found, "figures of all its turns", remedy))
