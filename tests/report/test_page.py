"""The page as a whole: everything is told and escaped, nothing is fetched, and it fits a desk and a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outsize.errors import RunError
from outsize.report.gather import gather
from outsize.report.page import make_page
from outsize.tasks import chapter_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (1200, 390)


class _Reader(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "img", "line", "rect", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _page(*runs: Path) -> str:
    return make_page(runs, chapter_of, version="1.2.3", when="2030-02-03 04:05 UTC")


def test_everything_is_told(full_run: Path) -> None:
    reader = _Reader(_page(full_run))
    text = " ".join("".join(reader.text).split())
    for told in (
        "outsize 1.2.3",
        "2030-02-03 04:05 UTC",
        "R&D <i> run",
        "mean IoU, test",
        "0.7500",
        "validation mean IoU",
        "learning rate",
        "Confusion",
        "calibration error 0.1200",
        "Best places",
        "Worst places",
        "train, drawn",
        "waiting for data",
        "copying",
        "Predicting 5 scenes",
        "because of <script>",
        "Rejected:",
        "too <script>",
        "outsize train <script>",
        "torch 9.9",
        "2030-01-02 03:04:05",
        "agree on 90.0 %",
        "[[data.classes]]",
        "2 more scenes",
        "0.4321",
        "0.2468",
        "2 px0.8765–",
        "mean of pixels0.80000.8335",
        "Beside what was published",
    ):
        assert told in text, told
    assert reader.open == []
    assert reader.tags.count("img") == 3 * 4
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in reader.addresses)


def test_what_verbs_took_is_drawn_and_what_more_of_it_would_gain(full_run: Path) -> None:
    account = {
        "schema": 1,
        "verb": "train",
        "began_s": 5.0,
        "seconds": 10.0,
        "cpu_s": 9.0,
        "outcome": "stopped",
    }
    activity = {"name": "steps <i>", "parallel": 8, "spans": [[1.0, 6.0]], "seconds": 5.0}
    (full_run / "accounts.jsonl").write_text(json.dumps({**account, "activities": [activity]}) + "\n")
    reader = _Reader(_page(full_run))
    text = " ".join("".join(reader.text).split())
    assert "Not to their end: train stopped." in text
    assert "train: steps <i>5.0 s50.0 %81.33 x1.78 x2.00 x" in text
    assert reader.open == []


def test_one_thing_has_one_colour_in_every_bar(full_run: Path) -> None:
    page = _page(full_run)
    found = re.findall(r'<li><span style="background:(#\w+)"></span>([a-z ]+?) [\d.]+ m?s', page)
    colours = {name: {colour for colour, other in found if other == name} for _, name in found}
    assert {"computing", "waiting for data", "copying", "writing the map"} <= colours.keys()
    assert all(len(each) == 1 for each in colours.values())
    alike = {"waiting for data", "waiting for reads"}
    others = [each for name, each in colours.items() if name not in alike]
    assert len({*map(min, others), *colours["waiting for data"]}) == len(others) + 1


def test_what_a_step_took_stands_beside_what_was_expected(full_run: Path) -> None:
    path = full_run / "plan.json"
    plans = json.loads(path.read_text())
    for plan in plans.values():
        plan["step_s"] = 0.16
    path.write_text(json.dumps(plans))
    assert "160.0 ms expected, 400.0 ms taken on average: 2.50 times as long" in _page(full_run)


def test_the_share_that_was_found_is_called_accuracy(full_run: Path) -> None:
    text = "".join(_Reader(_page(full_run)).text)
    assert "classIoUaccuracyF1BFtrue pixels" in text
    assert text.count("the share of its true pixels that the map has as that class") == 1
    assert "pixels right" not in text


def test_no_name_becomes_markup(full_run: Path) -> None:
    page = _page(full_run)
    reader = _Reader(page)
    assert not {"script", "b1", "i", "iframe", "link"} & set(reader.tags)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 30
    assert not re.search(r"https?://", page)


def test_scores_of_an_older_run_have_no_outlines(full_run: Path) -> None:
    path = full_run / "scores.json"
    scores = json.loads(path.read_text())
    for key in ("boundary", "published", "mean_bf"):
        del scores["test"][key]
    for row in scores["test"]["classes"].values():
        row.pop("bf", None)
    path.write_text(json.dumps(scores))
    text = "".join(_Reader(_page(full_run)).text)
    assert "mean of classes0.75000.70000.7000" in text
    assert "BF" not in text
    assert "Beside what was published" not in text


def test_a_run_that_was_only_begun(bare_run: Path) -> None:
    text = "".join(_Reader(_page(bare_run)).text)
    assert "Nothing was trained or scored" in text
    assert "The job (job.toml)" in text


def test_several_runs_side_by_side(full_run: Path, bare_run: Path, tmp_path: Path) -> None:
    twin = tmp_path / "elsewhere" / full_run.name
    shutil.copytree(full_run, twin)
    reader = _Reader(_page(full_run, bare_run, twin))
    text = "".join(reader.text)
    assert "Runs side by side" in text
    assert str(full_run) in text
    assert str(twin) in text  # folders of one name are told apart
    assert [each for each in reader.addresses if each[0] == "#"] == ["#run-0", "#run-1", "#run-2"]


def test_a_line_cut_off_is_left_out(full_run: Path) -> None:
    story = gather(full_run)
    assert [each["step"] for each in story.steps] == [10, 20, 30, 40, 50]
    assert len(story.epochs) == 5


def test_no_run_no_page(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run folder"):
        _page(tmp_path)


_MEASURE = """
<script>
onload = () => {
  document.title = JSON.stringify([...document.querySelectorAll("iframe")].map((frame) => {
    const page = frame.contentDocument;
    return {
      width: frame.clientWidth,
      needed: page.documentElement.scrollWidth,
      scripts: page.scripts.length,
      pictures: [...page.images].filter((each) => each.naturalWidth > 0).length,
      panels: page.querySelector(".panels").getBoundingClientRect().width,
    };
  }));
};
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the page with")
def test_it_fits_a_desk_and_a_phone(full_run: Path, bare_run: Path, tmp_path: Path) -> None:
    page = html.escape(_page(full_run, bare_run), quote=True)
    # a window is never narrower than 500 px, a frame is as narrow as it is asked to be
    frames = "".join(
        f'<iframe width="{w}" height="900" style="border:0" srcdoc="{page}"></iframe>' for w in WIDTHS
    )
    (tmp_path / "frames.html").write_text(f"<!DOCTYPE html><html><body>{frames}{_MEASURE}</body></html>")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [str(CHROMIUM), *options, profile, "--enable-logging=stderr", "--window-size=1300,900"]
    address = (tmp_path / "frames.html").as_uri()
    done = subprocess.run(
        [*command, "--dump-dom", address], capture_output=True, text=True, timeout=300, check=True
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    found = json.loads(html.unescape(title[1]))
    assert [each["width"] for each in found] == list(WIDTHS)
    for each in found:
        assert each["needed"] <= each["width"], each
        assert each["scripts"] == 0
        assert each["pictures"] == 12
        assert 0.7 * each["width"] < each["panels"] < each["width"]


def test_a_picture_of_another_folder_is_not_shown(full_run: Path) -> None:
    secret = full_run.parent / "secret.png"
    secret.write_bytes(b"no picture of this run")
    scores = json.loads((full_run / "scores.json").read_text())
    places = next(each["places"] for each in scores.values() if each.get("places"))
    for name in (str(secret), "../secret.png"):
        places[0]["picture"] = name
        (full_run / "scores.json").write_text(json.dumps(scores))
        with pytest.raises(
            RunError, match=r"scores.json cannot be understood: found ValueError: a picture at"
        ):
            make_page([full_run], chapter_of, version="1", when="today")
