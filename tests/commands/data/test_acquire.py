"""`outsize acquire`: of a list, of a job, of one address; what is missing is one line at the end."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.acquire.faulty_server import Faulty, serving
from typer.testing import CliRunner

from outsize.accounts import read_accounts
from outsize.cli import app
from outsize.errors import DataError, JobError
from outsize.runs import RunFolder

_BODY = b"rain" * 1000


def _acquire(*words: object) -> object:
    return CliRunner().invoke(app, ["acquire", *map(str, words)], catch_exceptions=True).exception


def test_a_list_is_fetched(tmp_path: Path) -> None:
    with serving(Faulty(files={"/a": _BODY, "/b": _BODY})) as server:
        digest = hashlib.sha256(_BODY).hexdigest()
        (tmp_path / "list.txt").write_text(f"{server.url}/a {digest} x/a\n{server.url}/b\n")
        assert _acquire(tmp_path / "list.txt", "--to", tmp_path / "raw") is None
        assert (tmp_path / "raw/x/a").read_bytes() == (tmp_path / "raw/b").read_bytes() == _BODY
        (tmp_path / "list.txt").write_text(f"{server.url}/b\n{server.url}/c\n")
        error = _acquire(tmp_path / "list.txt", "--to", tmp_path / "raw", "--tries", 1)
        assert isinstance(error, DataError)
        assert str(error).startswith("not all files could be fetched: found 1 missing, first")


def test_a_job_says_where_from_where_to_and_when(tmp_path: Path) -> None:
    with serving(Faulty(files={f"/{hour:02}.nc": _BODY for hour in range(3)})) as server:
        job = tmp_path / "rain.toml"
        job.write_text(
            f'[acquire]\nto = "frames"\nurls = ["{server.url}/{{time:%H}}.nc"]\n'
            "first = 2020-10-31T00:00:00\nlast = 2020-10-31T02:00:00\nstep_minutes = 60\n"
        )
        assert _acquire(job) is None
        assert sorted(path.name for path in (tmp_path / "frames").glob("*.nc")) == ["00.nc", "01.nc", "02.nc"]
        assert not (tmp_path / "runs").exists()  # no whole job, so no run
        classes = 'classes = [{ name = "a", value = 0 }, { name = "b", value = 1 }]'
        whole = f'run = "{tmp_path}/runs/rain"\n{job.read_text()}[data]\ntrain = ["*.tif"]\n{classes}\n'
        job.write_text(whole)
        assert _acquire(job) is None
        assert [each.verb for each in read_accounts(RunFolder(tmp_path / "runs/rain"))] == ["acquire"]
        job.write_text(job.read_text().replace("last = 2020-10-31T02", "last = 2020-10-30T02"))
        assert "acquire.last is too early" in str(_acquire(job))


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (None, DataError, "cannot read the list"),
        ("[data]\n", JobError, r"has no section \[acquire\]"),
        ("[acquire]\nurl = 3\n", JobError, "acquire.url"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str | None, error: type[Exception], said: str) -> None:
    path = tmp_path / ("list.txt" if text is None else "job.toml")
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=said):
        raise _acquire(path)  # type: ignore[misc]
    assert not (tmp_path / "raw").exists()
