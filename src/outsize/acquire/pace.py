"""How a server is treated: so many requests at once, so many a second, longer and longer pauses after failures."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

_LONGEST_PAUSE_S = 120.0
_DOUBLED_AT_MOST = 16


@dataclass(frozen=True)
class Manners:
    """What a server is asked to bear."""

    parallel: int = 4  # files at once
    rate_per_s: float | None = None  # requests begun in a second; None: as many as there are
    tries: int = 5  # of each file, since its last byte arrived
    pause_s: float = 1.0  # after the first failure; doubled after each further one
    timeout_s: float = 30.0  # without a byte


class Pace:
    """Lets requests begin no faster than the rate; `stop` ends every wait."""

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.stop = threading.Event()
        self._guard = threading.Lock()
        self._next_s = time.monotonic()

    def begin(self) -> None:
        """Wait until the next request may begin."""
        if self.manners.rate_per_s is None:
            return
        with self._guard:
            at_s = max(self._next_s, time.monotonic())
            self._next_s = at_s + 1 / self.manners.rate_per_s
        self.stop.wait(at_s - time.monotonic())

    def after_failure(self, num_failures: int, asked_s: float | None) -> None:
        """Wait before the next try: as long as the server asked for, or a while that doubles."""
        doubled_s = self.manners.pause_s * 2 ** min(num_failures - 1, _DOUBLED_AT_MOST)
        # many that failed together should not come back together
        pause_s = doubled_s * random.uniform(0.5, 1.0) if asked_s is None else asked_s
        self.stop.wait(min(pause_s, _LONGEST_PAUSE_S))


def seconds_asked(retry_after: str | None) -> float | None:
    """Read the header Retry-After: seconds, or a date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (when - datetime.now(when.tzinfo)).total_seconds())
