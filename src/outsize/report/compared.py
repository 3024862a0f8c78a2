"""Runs and benches of several machines side by side, with what others published and what other machines would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.measurement import Measurement
from outsize.report.curves import Axis, Curve, draw_curves
from outsize.report.gather import Story
from outsize.report.markup import Markup, Part, pairs, table, tag
from outsize.report.page import lay_out
from outsize.report.parts import Chapter, figure, percent, section
from outsize.report.published import NAMES, Publication, published
from outsize.report.tables import (
    batch_table,
    fit_table,
    profile_lines,
    scaling_table,
    seconds,
    share_table,
    size,
)
from outsize.runs import as_written
from outsize.units import format_bytes, format_seconds

_HOUR_S = 3600.0
# clicking a head sorts its table by that column: numbers as numbers, in the units that they are written in
_SORT = """
const unit={ns:1e-9,us:1e-6,ms:1e-3,s:1,min:60,h:3600,d:86400,KiB:1024,MiB:2**20,GiB:2**30,TiB:2**40};
const worth=t=>{const m=t.replace(/,/g,'').match(/^[+-]?[\\d.]+/);if(!m)return null;
 const u=t.match(/[A-Za-z]+/);return parseFloat(m[0])*(u&&unit[u[0]]||1)};
document.querySelectorAll('table').forEach(table=>table.querySelectorAll('thead th').forEach((th,i)=>{
 th.style.cursor='pointer';th.title='sort';let up=1;
 th.onclick=()=>{const body=table.tBodies[0];up=-up;[...body.rows].sort((a,b)=>{
  const x=a.cells[i].textContent,y=b.cells[i].textContent,p=worth(x),q=worth(y);
  return up*(p===null||q===null?(p===null)-(q===null)||y.localeCompare(x):q-p)}).forEach(r=>body.append(r))}}));
"""

Tree = dict[str, Any]
_TABLED = {"scaling": ("Scaling over ranks", scaling_table), "share": ("Sharing the device", share_table)}


@dataclass(frozen=True)
class Compared:
    """All that a page shows."""

    stories: Sequence[Story]
    measured: Sequence[tuple[str, Measurement]]  # with the name of the run, or of the file
    elsewhere: Sequence[tuple[str, Sequence[Tree]]]  # a job's name, its predictions for machines
    missing: Sequence[str] = ()  # what could not be predicted, and why
    with_published: bool = False
    prices: Mapping[str, float] | None = None  # per hour, by the name of a run
    foretold: Sequence[Tree] = ()  # steps that others published, and what is predicted of them
    said: str = ""  # of how far off that is


def make_comparison(shown: Compared, chapter_of: Callable[[str], Chapter], *, version: str, when: str) -> str:
    """Return the page as HTML; all of it in one file, tables sorted by a few lines of script inside."""
    names = list(
        dict.fromkeys([*(each.name for each in shown.stories), *(name for name, _ in shown.measured)])
    )
    _refuse_broken(shown.measured)
    parts: list[Part] = [
        _runs(shown, chapter_of),
        *_benches(shown.measured),
        *(_elsewhere(name, rows, shown.measured) for name, rows in shown.elsewhere),
        tag("ul", [tag("li", text) for text in shown.missing]) if shown.missing else None,
        _foretold(shown) if shown.foretold else None,
        *(_published() if shown.with_published else ()),
        _machines(shown.measured),
        tag("script", Markup(_SORT)),
    ]
    title = " and ".join(names) or "published"
    note = f"Comparison of {when} by outsize {version}. Click a head to sort its table."
    return lay_out(
        title, note, parts, footer="Everything on this page comes from files; it needs no network."
    )


def _benches(measured: Sequence[tuple[str, Measurement]]) -> list[Part]:
    """Return the sections of all benches; `bench profile` and others of several runs share one."""
    return [
        _batches(measured),
        *(_fits(name, each) for name, each in measured if each.kind == "fit"),
        _profiles(measured),
        _memory(measured),
        *(_tabled(name, each) for name, each in measured if each.kind in _TABLED),
    ]


def _refuse_broken(measured: Sequence[tuple[str, Measurement]]) -> None:
    """Name the file whose figures are not those of its kind: a schema does not tell what is in a row."""
    for name, each in measured:
        with as_written(Path(name), f"bench {each.kind}"):
            _benches([(name, each)])
            _machines([(name, each)])
            _measured_rate(name, [(name, each)])


def _runs(shown: Compared, chapter_of: Callable[[str], Chapter]) -> Markup | None:
    """Return what trainings took and scored, each against the first."""
    rows: list[list[Part]] = []
    first_s: float | None = None
    for story in (each for each in shown.stories if each.usage or each.epochs):
        used: Tree = story.usage.get("train", {})
        per_s, price = used.get("s_per_image"), (shown.prices or {}).get(story.name)
        first_s = first_s or per_s
        chapter = chapter_of(story.job["task"])
        best = max((each.get(chapter.score, 0.0) for each in story.epochs), default=None)
        total_s = used.get("seconds")
        rows.append(
            [
                story.name,
                used.get("device", "–"),
                story.job["model"]["name"],
                seconds(total_s),
                seconds(per_s),
                "–" if not per_s or not first_s else f"{first_s / per_s:.2f} x",
                figure(best),
                chapter.score_name,
                percent(used.get("gpu_use")),
                size(used.get("gpu_bytes")),
                size(used.get("host_bytes")),
                "–" if price is None or total_s is None else f"{price * total_s / _HOUR_S:.2f}",
            ]
        )
    if not rows:
        return None
    heads = ("run", "device", "model", "training", "s / image", "speed", "best", "score", "GPU use")
    heads_more = ("GPU memory", "host memory", "cost")
    note = "Speed is that of the first run's time per image over this one's. Cost is training time at the price given."
    return section("Runs", table((*heads, *heads_more), rows), note=note)


def _batches(measured: Sequence[tuple[str, Measurement]]) -> Markup | None:
    found = [(name, each) for name, each in measured if each.kind == "batch"]
    if not found:
        return None
    curves = [
        Curve(
            f"{name}: {each.machine.name}",
            [(row["batch"], row["samples_per_s"]["median"]) for row in each.rows if row.get("samples_per_s")],
        )
        for name, each in found
    ]
    drawn = draw_curves(Axis("batch", low=0, whole=True), Axis("samples/s", low=0), curves)
    parts: list[Part] = (
        [tag("div", drawn, class_="charts")] if any(len(each.points) > 1 for each in curves) else []
    )
    for name, each in found:
        heads, rows, remarks = batch_table(each)
        parts += [tag("h4", f"{name}: {each.job.text}, on {each.machine.name}"), table(heads, rows)]
        parts += [tag("p", text, class_="note") for text in remarks]
    note = "± is how far the farthest repeat lies from the median; predicted is the peak by the plan."
    return section("Batches", *parts, note=note)


def _fits(name: str, measured: Measurement) -> Markup:
    heads, rows, remarks = fit_table(measured)
    parts = [tag("p", text, class_="note") for text in remarks]
    what = f"{measured.job.model}, {measured.job.precision}"
    note = f"{what}. Cost is the step's time over a plain step with memory enough."
    return section(f"What fits: {name}", table(heads, rows), *parts, note=note)


def _profiles(measured: Sequence[tuple[str, Measurement]]) -> Markup | None:
    found = [(name, each) for name, each in measured if each.kind == "profile"]
    if not found:
        return None
    names = list(found[0][1].about["parts"])
    rows = [
        [name, seconds(each.about["step_s"]), *(percent(each.about["parts"].get(part)) for part in names)]
        for name, each in found
    ]
    told = [tag("li", f"{name}: {profile_lines(each)[-1]}") for name, each in found]
    return section("Where a step's time goes", table(("", "step", *names), rows), tag("ul", told))


def _memory(measured: Sequence[tuple[str, Measurement]]) -> Markup | None:
    """Return the ways of `bench memory` of all runs in one table."""
    rows = [
        [name, row["label"], _ms(row["ms"]), _over(row["over_plain"]), size(row["peak_bytes"])]
        for name, each in measured
        if each.kind == "memory"
        for row in each.rows
        if row["failed"] is None
    ]
    return (
        section("Memory against time", table(("", "way", "step", "over plain", "peak"), rows))
        if rows
        else None
    )


def _tabled(name: str, measured: Measurement) -> Markup:
    title, make_table = _TABLED[measured.kind]
    heads, rows, remarks = make_table(measured)
    told = [tag("p", text, class_="note") for text in remarks]
    note = f"{measured.job.text}, on {measured.machine.name}; all ways in turns."
    return section(f"{title}: {name}", table(heads, rows), *told, note=note)


def _elsewhere(name: str, rows: Sequence[Tree], measured: Sequence[tuple[str, Measurement]]) -> Markup:
    """Return what a job would take on every machine, beside what it took here."""
    here = _measured_rate(name, measured)
    drawn: list[list[Part]] = []
    for row in rows:
        step_s, error, rate = row.get("predicted_step_s"), row["time_error"], row.get("samples_per_s")
        drawn.append(
            [
                row["title"],
                row["outcome"],
                size(row.get("predicted_plain_bytes")),
                size(row.get("predicted_peak_bytes")),
                seconds(step_s),
                "–"
                if step_s is None
                else f"{format_seconds(step_s * (1 - error))} to {format_seconds(step_s * (1 + error))}",
                "–" if rate is None else f"{rate:,.1f}",
                "–" if rate is None or here is None else f"{rate / here:,.1f} x",
            ]
        )
    heads = ("machine", "outcome", "plain needs", "peak", "step", "between", "samples/s", "over here")
    error = max((row["time_error"] for row in rows), default=0.0)
    note = (
        f"One GPU of each, by data sheets, within its own memory. Times are good to ± {error:.0%}, peaks to ± 3 %: "
        "so far were predictions from 144 steps measured on one H200; on other cards nothing was measured."
    )
    over = None if here is None else tag("p", f"Here: {here:,.1f} samples/s, measured.", class_="note")
    return section(f"Is it worth moving? {name}", over, table(heads, drawn), note=note)


def _measured_rate(name: str, measured: Sequence[tuple[str, Measurement]]) -> float | None:
    """Return the samples a second that were measured of a job at its own batch."""
    for named, each in measured:
        if named == name and each.kind == "profile":
            return float(each.job.batch / each.about["step_s"]["median"])
        if named == name and each.kind == "batch":
            own = [row for row in each.rows if row["batch"] == each.job.batch and row.get("samples_per_s")]
            if own:
                return float(own[0]["samples_per_s"]["median"])
    return None


def _foretold(shown: Compared) -> Markup:
    """Return published steps beside predictions, with their errors, and why they are off."""
    heads = ["table", "model", "machine", "batch", "published", "predicted", "error", "paced", "error"]
    rows: list[list[Part]] = [
        [
            each["table"],
            each["model"],
            each["machine"],
            str(each["batch"]),
            seconds(each["published_s"]),
            seconds(each["predicted_s"]),
            _signed(each["error"]),
            seconds(each["paced_s"]),
            _signed(each["paced_error"]),
        ]
        for each in shown.foretold
    ]
    why = dict.fromkeys(f"{each['table']}: {each['why']}" for each in shown.foretold if each["why"])
    said = f"{shown.said[:1].upper()}{shown.said[1:]}."
    note = (
        f"{said} Predicted: a plain step in float32, by data sheets. Paced: times what the same network took over its "
        "prediction on a card of the catalogue, by the files given, or as we measured it on an H200."
    )
    told = tag("ul", [tag("li", text) for text in why])
    return section("Published steps, predicted", table(heads, rows), told, note=note)


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.0%}"


def _published() -> list[Markup]:
    return [_publication(published(name)) for name in NAMES]


def _publication(found: Publication) -> Markup:
    """Return a table of others as it was printed, units in the heads."""
    keys = list(dict.fromkeys(key for row in found.rows for key in row))
    heads = [key.replace("_", " ") for key in keys]
    rows = [[_cell(row.get(key)) for key in keys] for row in found.rows]
    return section(f"Published: {found.title}", table(heads, rows), note=found.source)


def _machines(measured: Sequence[tuple[str, Measurement]]) -> Markup | None:
    """Return what measured, and by which versions."""
    if not measured:
        return None
    parts: list[Part] = []
    for name, each in measured:
        machine, rates = each.machine, each.machine.rates
        link = rates.get("to_device_bytes_per_s")
        entries: list[tuple[str, Part]] = [
            ("GPU", machine.gpu or "none"),
            ("CPU", f"{machine.cpu}, {machine.num_cores} cores"),
            ("host memory", format_bytes(machine.host_bytes)),
            ("driver", machine.driver),
            ("link to the GPU", None if link is None else f"{link / 1e9:.1f} GB/s"),
            (
                "limits",
                ", ".join(f"{key} {format_bytes(value)}" for key, value in machine.limits.items()) or None,
            ),
            ("torch", each.versions.get("torch")),
            ("command", tag("code", each.command)),
            ("measured", each.when.replace("T", " ")),
        ]
        parts += [tag("h4", f"{name}: bench {each.kind}"), pairs(entries)]
    return section("What measured", tag("details", tag("summary", "machines, versions, commands"), parts))


def _ms(value: float | None) -> str:
    return seconds(None if value is None else value / 1e3)


def _over(value: float | None) -> str:
    return "–" if value is None else f"{value - 1:+.1%}"


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)
