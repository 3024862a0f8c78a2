"""Asks a database that may not answer: for so long, and then one line says which and how long it was waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from outsize.errors import OutsizeError, RunError, explain, first_line
from outsize.units import format_seconds

Answer = TypeVar("Answer")

PATIENCE_S = 30.0
_PASSED_ON = (OutsizeError, ValueError, LookupError, RuntimeError)


class Patience:
    """Calls what asks a database in a thread of its own, for a driver may wait forever."""

    def __init__(self, address: str, patience_s: float = PATIENCE_S) -> None:
        """Name the address as a message may show it: without a password."""
        self._address, self._patience_s = address, patience_s

    def asked(self, ask: Callable[[], Answer]) -> Answer:
        """Return the answer. Raises RunError where there is none."""
        answers: list[Answer] = []
        errors: list[Exception] = []
        passed_on: tuple[type[Exception], ...] = (*_of_databases(), *_PASSED_ON)
        began_s = time.monotonic()

        def run() -> None:
            try:
                answers.append(ask())
            except passed_on as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="database", daemon=True)
        thread.start()
        thread.join(self._patience_s)
        if answers:
            return answers[0]
        if errors and not isinstance(errors[0], _of_databases()):
            raise errors[0]
        waited = format_seconds(time.monotonic() - began_s)
        waited = f"{first_line(errors[0])} after {waited}" if errors else f"no answer in {waited}"
        need, remedy = "a database that is reached", "start it or correct --storage, and repeat the command"
        raise RunError(explain(f"the database {self._address} does not answer", waited, need, remedy))


def shown_address(url: str) -> str:
    """Return the address of a database without its password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError as error:
        need = "an address such as sqlite:///study.db or postgresql://user@host/name"
        raise RunError(
            explain("--storage is no address of a database", repr(url), need, "correct it")
        ) from error


def _of_databases() -> tuple[type[Exception], ...]:
    """What a database, its driver and the way to it may raise."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    return StorageInternalError, SQLAlchemyError, ImportError, OSError
