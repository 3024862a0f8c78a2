"""A database that does not answer: one line with its address, without a password, and how long it was waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from outsize.errors import JobError, RunError
from outsize.tuning.patience import Patience, shown_address

_ADDRESS = "postgresql://me:***@host/study"


def _refused() -> None:
    from sqlalchemy.exc import OperationalError

    raise OperationalError("connect", None, ConnectionRefusedError("Connection refused"))


def _no_driver() -> None:
    raise ModuleNotFoundError("No module named 'psycopg2'")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (threading.Event().wait, r"found no answer in [\d.]+ m?s, "),
        (_refused, "Connection refused.* after "),
        (_no_driver, "No module named 'psycopg2' after "),
    ],
)
def test_no_answer_is_one_line(ask: Callable[[], object], says: str) -> None:
    with pytest.raises(RunError, match=says) as raised:
        Patience(_ADDRESS, patience_s=0.05).asked(ask)
    assert str(raised.value).startswith(f"the database {_ADDRESS} does not answer: found ")
    assert "\n" not in str(raised.value)


def test_an_answer_and_what_is_not_the_databases_fault_come_through() -> None:
    def mistaken() -> None:
        raise JobError("of the job")

    patience = Patience(_ADDRESS)
    assert patience.asked(lambda: 7) == 7
    with pytest.raises(JobError, match="of the job"):
        patience.asked(mistaken)


def test_an_address_is_shown_without_its_password() -> None:
    assert shown_address("postgresql://me:secret@host/study") == _ADDRESS
    with pytest.raises(RunError, match="--storage is no address of a database"):
        shown_address("study.db")
