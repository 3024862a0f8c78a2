"""Starts the ranks of a job on this machine by torchrun's own launcher, and starts over where one was killed."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence

from outsize.errors import RanksError, ReportedElsewhere, explain
from outsize.ranks.pulse import LOST_ANOTHER, Phases

RESTARTS = 1
ENDS_WITH_LAUNCHER = "OUTSIZE_ENDS_WITH_LAUNCHER"  # set for the ranks: nobody would wait for them any more
_QUIET = {"LOGLEVEL": "CRITICAL", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # a rank's own last line says what happened
_TALKS = "torch.distributed.elastic.multiprocessing"  # of the launcher; it does not look at LOGLEVEL


def launch(
    words: Sequence[str],
    num_ranks: int,
    *,
    again: Callable[[Sequence[str]], Sequence[str]] = tuple,
    say: Callable[[str], None] = lambda _: None,
    restarts: int = RESTARTS,
) -> int:
    """Run `python WORDS` on so many ranks and return the exit code of the one that failed first; 0 where none did.

    Where a rank is killed by a signal all start over, up to `restarts` times, with the words that `again` makes. A
    rank that ends by itself has said why: it would say so again.
    """
    if "LOGLEVEL" not in os.environ:
        logging.getLogger(_TALKS).setLevel(_QUIET["LOGLEVEL"])
    # before the launcher is loaded, which reads it then
    os.environ |= {name: value for name, value in _QUIET.items() if name not in os.environ}
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    words = list(words)
    for attempt in range(restarts + 1):
        phases = Phases.made()
        try:
            _run(words, num_ranks)
        except (
            SignalException
        ) as error:  # it was passed on to the ranks, of which the owner has said what is kept
            raise ReportedElsewhere(128 + error.sigval) from error
        except ChildFailedError as error:
            # by itself: those who then lost it ended for that alone, maybe before it was looked at
            ended = {rank: each for rank, each in error.failures.items() if each.exitcode != LOST_ANOTHER}
            if not ended:
                return LOST_ANOTHER
            rank, failure = min(ended.items(), key=lambda each: each[1].timestamp)
            if failure.exitcode >= 0:
                return int(failure.exitcode)
            name = signal.Signals(-failure.exitcode).name
            if attempt == restarts:
                need, remedy = (
                    "all ranks to the end",
                    "look whether memory ran out on the machine, and use --resume",
                )
                raise RanksError(
                    explain(f"rank {rank} was killed in {phases.of(rank)}", name, need, remedy)
                ) from error
            words = list(again(words))
            say(
                f"rank {rank} was killed by {name} in {phases.of(rank)}: all ranks start over, from what was saved last"
            )
        else:
            return 0
        finally:
            phases.clear()
    return 0


def _run(words: Sequence[str], num_ranks: int) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[ENDS_WITH_LAUNCHER] = "1"
    if "OMP_NUM_THREADS" not in os.environ:  # else each rank would take all cores
        os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // num_ranks))
    with tempfile.TemporaryDirectory(prefix="outsize-launch-") as logs:  # which torch makes, and leaves there
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,  # it would also repeat what ended by itself
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        elastic_launch(config, sys.executable)(*words)
