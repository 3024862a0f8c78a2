"""`outsize compare`: runs, benches, published tables and other machines on one page."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.commands.conftest import Run

from outsize.accounts import read_accounts
from outsize.commands.results.compare import compare
from outsize.errors import JobError, RunError
from outsize.measurement import Figure, Fingerprint, MeasuredJob, Measurement, write_measurement
from outsize.progress import Reporter
from outsize.report.published import NAMES, published
from outsize.runs import RunFolder

_NASTY = "<script>alert(1)</script>"
_HOW: dict[str, Any] = {"published": False, "elsewhere": False, "prices": (), "overwrite": False}
_RATE = Figure(4.0, 0.1, 3).as_dict()
_BATCH = Measurement(
    kind="batch",
    machine=Fingerprint("cpu", _NASTY, 2, 2**33, limits={"host_memory": 2**31}),
    job=MeasuredJob("unet", 2, 64, "fp32"),
    versions={"torch": "2.11"},
    command="outsize bench batch job.toml",
    when="2026-11-19T12:00:00+00:00",
    rows=(
        {
            "batch": 2,
            "failed": None,
            "peak_bytes": 2**20,
            "predicted_peak_bytes": 2**20,
            "step_s": _RATE,
            "s_per_sample": _RATE,
            "samples_per_s": _RATE,
            "cpu_load": 0.5,
            "gpu_use": None,
            "gpu_bytes": None,
            "host_bytes": 2**30,
        },
        {"batch": 4, "failed": "out of memory: 3 GiB predicted"},
    ),
)
_PARTS = {"waiting for data": 0.4, "compute": 0.6}
_PROFILE = replace(
    _BATCH,
    kind="profile",
    rows=(),
    about={
        "parts": _PARTS,
        "step_s": _RATE,
        "copied_bytes_per_s": {},
        "verdict": {"sentence": "the CPU waits 40% of the step for data"},
    },
)


def _page(paths: list[Path], out: Path, **changes: Any) -> str:
    compare(paths, out=out, reporter=Reporter("quiet"), **{**_HOW, **changes})
    return out.read_text()


@pytest.fixture
def measured_run(trained_run: Path, tmp_path: Path) -> Path:
    run = tmp_path / "mine"
    shutil.copytree(trained_run, run)
    for each in (_BATCH, _PROFILE):
        write_measurement(run / f"bench/{each.kind}.json", each)
    (run / "bench/profile-trace.json").write_text('{"traceEvents": []}')
    return run


def test_runs_and_benches_are_side_by_side(measured_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "theirs.json"
    write_measurement(file, _BATCH)
    page = _page([measured_run, file], tmp_path / "compare.html", prices=["mine=3600"])
    for text in ("mine", "theirs", "out of memory: 3 GiB predicted", "no GPU", "the CPU waits 40%", "±"):
        assert text in page, text
    assert _NASTY not in page
    assert page.count("<script>") == 1
    assert "http://" not in page
    assert "https://" not in page
    assert "Published" not in page
    usage = json.loads((measured_run / "usage.json").read_text())["train"]
    assert f">{usage['seconds']:.2f}<" in page  # at 3600 an hour a second costs 1
    assert read_accounts(RunFolder(measured_run))[-1].verb == "compare"


def test_published_tables_say_where_they_are_from(tmp_path: Path) -> None:
    page = _page([], tmp_path / "compare.html", published=True)
    for name in NAMES:
        assert published(name).title in page


def test_a_run_is_predicted_for_every_machine(measured_run: Path, tmp_path: Path) -> None:
    page = _page([measured_run], tmp_path / "compare.html", elsewhere=True)
    assert "Is it worth moving? mine" in page
    for name in ("H200", "Tesla K80", "Tesla P100", "IBM AC922"):
        assert name in page
    assert "± 30%" in page


def test_what_cannot_be_predicted_is_named(measured_run: Path, tmp_path: Path) -> None:
    job = (measured_run / "job.toml").read_text()
    (measured_run / "job.toml").write_text(job.replace("train-", "gone-"))
    page = _page([measured_run], tmp_path / "compare.html", elsewhere=True)
    assert "mine is not predicted for other machines" in page


def _broken(tree: Any, where: tuple[Any, ...]) -> Any:
    """Return a tree with one thing in it of another kind."""
    copied = json.loads(json.dumps(tree))
    inner = copied
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = ["not", "this"]
    return copied


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("batch", ("rows", 0)),
        ("batch", ("rows", 0, "step_s")),
        ("batch", ("rows", 0, "batch")),
        ("batch", ("rows", 0, "samples_per_s", "median")),
        ("batch", ("about",)),
        ("batch", ("machine", "rates")),
        ("batch", ("machine",)),
        ("profile", ("about", "parts")),
        ("profile", ("about", "verdict")),
        ("profile", ("about", "step_s")),
        ("scaling", ("rows", 0)),
        ("share", ("rows", 0)),
        ("fit", ("rows", 0)),
        ("memory", ("rows", 0)),
    ],
)
def test_figures_of_another_kind_are_one_line(tmp_path: Path, kind: str, where: tuple[Any, ...]) -> None:
    file = tmp_path / "theirs.json"
    write_measurement(file, replace(_PROFILE if kind == "profile" else _BATCH, kind=kind))
    tree = _broken(json.loads(file.read_text()), where)
    file.write_text(json.dumps(tree))
    with pytest.raises(RunError, match=r"theirs.*cannot be understood: found"):
        _page([file], tmp_path / "compare.html")
    assert not (tmp_path / "compare.html").exists()


def test_a_run_that_cannot_be_read_is_one_line(measured_run: Path, tmp_path: Path) -> None:
    (measured_run / "metrics.jsonl").write_bytes(b"\xff\xfe{}\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        _page([measured_run], tmp_path / "compare.html")
    (measured_run / "job.toml").write_text("[data")
    with pytest.raises((JobError, RunError), match=r"job\.toml"):
        _page([measured_run], tmp_path / "compare.html")


_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_LOOKED_AT = """<script>
const sizes=[document.documentElement.scrollWidth,innerWidth,
 ...[...document.querySelectorAll('svg,img,p,li,h1,h3')].map(each=>each.getBoundingClientRect().right)];
const heads=[...document.querySelectorAll('th')].filter(each=>each.textContent==='samples/s'&&each.onclick);
const column=table=>[...table.tBodies[0].rows].map(row=>row.cells[heads[0].cellIndex].textContent);
const table=heads[0].closest('table'),seen=[];
for(let turn=0;turn<2;turn++){heads[0].click();seen.push(column(table))}
document.title=JSON.stringify({width:sizes[0],room:sizes[1],right:Math.max(...sizes.slice(2)),seen});
</script>"""


def _looked_at(page: str, folder: Path, width: int) -> dict[str, Any]:
    """Lay a page out in a browser without a network and return what it says of itself."""
    assert _CHROMIUM is not None
    (folder / "page.html").write_text(page.replace("</body>", f"{_LOOKED_AT}</body>"))
    # a window has a least width, a frame has none
    frame = f'<iframe id="it" src="page.html" style="border:0;width:{width}px;height:900px"></iframe>'
    script = "<script>it.onload=()=>document.title=it.contentDocument.title</script>"
    (folder / "frame.html").write_text(f"<title></title>{frame}{script}")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--window-size=1400,1000",
    ]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    command = [_CHROMIUM, *flags, (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search("<title>(.*?)</title>", done.stdout)
    assert told is not None
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    return found


@pytest.mark.skipif(_CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_lays_the_page_out_and_sorts_its_tables(
    measured_run: Path, tmp_path: Path, width: int
) -> None:
    rates = [("1.5 ms", 900.0), ("3 ms", 1200.5), ("2 ms", 34.0)]
    rows = [
        {**_BATCH.rows[0], "batch": number, "samples_per_s": Figure(rate, 0.1, 3).as_dict()}
        for number, (_, rate) in enumerate(rates, start=1)
    ]
    write_measurement(measured_run / "bench/batch.json", replace(_BATCH, rows=tuple(rows)))
    page = _page([measured_run], tmp_path / "compare.html", published=True)
    found = _looked_at(page, tmp_path, width)
    assert found["width"] <= found["room"] == width, "the page itself never scrolls sideways"
    assert found["right"] <= width
    assert found["seen"] == [["34", "900", "1,200"], ["1,200", "900", "34"]]


def test_mistakes_are_one_line(run: Run, tmp_path: Path, trained_run: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": 9}')
    run("compare", broken, "--out", tmp_path / "c.html").refused("newer schema", "found 9")
    run("compare", "--out", tmp_path / "c.html").refused("nothing to compare", "--published")
    run("compare", tmp_path / "nowhere", "--out", tmp_path / "c.html").refused("nowhere")
    run("compare", trained_run, "--here", "--price", "cheap", "--out", tmp_path / "c.html").refused(
        "--price", "'cheap'"
    )
    run("compare", trained_run, "--here", "--out", tmp_path / "d.html", limit_bytes=1000).refused("d.html")
    assert not (tmp_path / "d.html").exists()
    (tmp_path / "other.html").write_text("mine")
    run("compare", trained_run, "--here", "--out", tmp_path / "other.html").refused("other.html")
