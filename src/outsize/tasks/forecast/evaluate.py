"""Scores forecasts by lead and threshold, beside persistence and frames carried on by optical flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.frames import Levels, known, to_levels, to_rain
from outsize.data.motion import advected, find_motion, persistent
from outsize.errors import RunError, explain
from outsize.infer.ledger import file_beside, read_ledger
from outsize.job import FramesSection, Job
from outsize.metrics.forecast import (
    ForecastCounts,
    ReliabilityCounts,
    count_forecast,
    count_reliability,
    no_counts,
    no_reliability,
)
from outsize.progress import Reporter
from outsize.raster.reading import SceneReader, describe
from outsize.runs import RunFolder
from outsize.tasks.forecast.answers import base_band, mean_of, truth_of
from outsize.tasks.forecast.sheet import draw_errors, draw_film, draw_sheet
from outsize.tasks.subjects import Subject
from outsize.units import format_score

METHODS = ("model", "flow", "persistence")


@dataclass
class Tally:
    """What is counted of a run's forecasts, and summed for the maps of error."""

    counts: dict[str, ForecastCounts]
    reliability: ReliabilityCounts | None = None
    threshold: float = 0.0  # of the probabilities
    error: NDArray[np.float64] | None = (
        None  # row, column: sum over windows and leads of |found - came|, mm/h
    )
    bias: NDArray[np.float64] | None = None
    num: NDArray[np.float64] | None = None
    csi_of: dict[str, float] = field(default_factory=dict)  # of each window, over all leads


def evaluate(
    run: RunFolder, job: Job, split: str, subjects: Sequence[Subject], reporter: Reporter
) -> dict[str, Any]:
    """Score the forecasts of a split, draw some of them, and return the scores."""
    frames = job.data.frames
    tally = Tally({name: no_counts(frames.num_out, len(frames.thresholds)) for name in METHODS})
    with reporter.bar("evaluate", len(subjects), "forecast") as bar:
        for subject, found in zip(subjects, rains_of(run, subjects), strict=True):
            _add(tally, subject, found, frames)
            bar.advance()
    figures = {name: counts.as_dict() for name, counts in tally.counts.items()}
    means = {name: means_of(counts, frames) for name, counts in tally.counts.items()}
    result: dict[str, Any] = {
        "task": job.task,
        "mean_csi": means["model"]["csi"][0],
        "num_forecasts": len(subjects),
        "leads": list(frames.lead_names),
        "thresholds": list(frames.thresholds),
        "flow": method_of(frames),
        "means": means,
        "methods": figures,
        "windows": {name: round(value, 6) for name, value in tally.csi_of.items()},
    }
    if tally.reliability is not None:
        result["reliability"] = {
            "threshold": tally.threshold,
            "bins": tally.reliability.as_bins(),
            "brier": round(tally.reliability.brier, 6),
        }
    result["pictures"] = _draw(run, split, subjects, tally, frames)
    return result


def rains_of(
    run: RunFolder, subjects: Sequence[Subject]
) -> Iterator[tuple[Levels, NDArray[np.float32] | None, float]]:
    """Yield what was forecast for each of the windows: rain, and the probability of rain of a threshold."""
    known_maps = read_ledger(run.predictions)
    for subject in subjects:
        entry = known_maps.get(str(subject.scene.image.path.resolve()))
        path = None if entry is None else file_beside(run.predictions, entry["map"])
        if path is None:
            need, remedy = (
                "a forecast of each window",
                f"run `outsize predict {run.path}` first, with the same --split",
            )
            found = f"none of {subject.name}"
            raise RunError(explain(f"{run.predictions} lacks forecasts", found, need, remedy))
        beside = path.with_name(f"{path.stem}_probability.tif")
        probability, threshold = None, 0.0
        if beside.is_file():
            probability, threshold = _read(beside), _threshold_of(beside)
        yield to_levels(_read(path)), probability, threshold


def carried_on(subject: Subject, frames: FramesSection) -> tuple[Levels, Levels]:
    """Return what optical flow and persistence say: read where a model saw it, and else found now."""
    with SceneReader(subject.scene.image) as reader:
        seen = reader.read(subject.scene.image.window).pixels
    first = base_band(subject.scene.image.band_names)
    now = seen[frames.num_in - 1]
    if first is not None:
        return seen[first : first + frames.num_out], persistent(now, frames.num_out)
    motion = find_motion(list(seen[: frames.num_in]), method_of(frames))
    return advected(now, motion, frames.num_out), persistent(now, frames.num_out)


def method_of(frames: FramesSection) -> str:
    """Return the method of the baseline."""
    return "dis" if frames.flow == "none" else frames.flow


def means_of(counts: ForecastCounts, frames: FramesSection) -> dict[str, list[float]]:
    """Return the mean over leads of CSI and FSS, for each threshold."""
    each = range(len(frames.thresholds))
    return {
        "csi": [round(mean_of(counts.csi[:, number]), 6) for number in each],
        "fss": [round(mean_of(counts.fss[:, number]), 6) for number in each],
    }


def score_lines(split: str, result: Mapping[str, Any], run: RunFolder) -> list[str]:
    """Return all that is said of a split's scores: CSI by lead and threshold, for all methods."""
    lines = []
    for number, threshold in enumerate(result["thresholds"]):
        lines.append(f"CSI at {threshold:g} mm/h" + "".join(f"{name:>13}" for name in METHODS))
        for lead, named in enumerate(result["leads"]):
            values = [result["methods"][name]["csi"][lead][number] for name in METHODS]
            lines.append(
                f"{named:<{len(lines[0]) - 39}}" + "".join(f"{format_score(each):>13}" for each in values)
            )
        means = [result["means"][name] for name in METHODS]
        for kind in ("csi", "fss"):
            text = f"mean {kind.upper()}"
            lines.append(
                f"{text:<{len(lines[0]) - 39}}"
                + "".join(f"{format_score(each[kind][number]):>13}" for each in means)
            )
    mean, flow = result["means"]["model"]["csi"][0], result["means"]["flow"]["csi"][0]
    lines.append(
        f"{split}: mean CSI at {result['thresholds'][0]:g} mm/h {format_score(mean)}, by optical flow "
        f"({result['flow']}) {format_score(flow)}, of {result['num_forecasts']} forecasts: {run.scores}"
    )
    return lines


def _add(
    tally: Tally,
    subject: Subject,
    forecast: tuple[Levels, NDArray[np.float32] | None, float],
    frames: FramesSection,
) -> None:
    found, probability, threshold = forecast
    came = truth_of(subject.scene.labels)
    flow, still = carried_on(subject, frames)
    for name, each in zip(METHODS, (found, flow, still), strict=True):
        counted = count_forecast(each, came, frames.thresholds)
        tally.counts[name] += counted
        if name == METHODS[0]:
            tally.csi_of[subject.name] = mean_of(counted.csi[:, 0])
    if probability is not None:
        tally.reliability = (tally.reliability or no_reliability()) + count_reliability(
            probability, came, threshold
        )
        tally.threshold = threshold
    is_known = known(came)
    apart = np.where(is_known, np.nan_to_num(to_rain(found)) - np.nan_to_num(to_rain(came)), 0).astype(
        np.float64
    )
    sums = np.abs(apart).sum(0), apart.sum(0), is_known.sum(0).astype(np.float64)
    if tally.error is None or tally.bias is None or tally.num is None:
        tally.error, tally.bias, tally.num = sums
    else:
        tally.error, tally.bias, tally.num = tally.error + sums[0], tally.bias + sums[1], tally.num + sums[2]


def _draw(
    run: RunFolder, split: str, subjects: Sequence[Subject], tally: Tally, frames: FramesSection
) -> dict[str, Any]:
    """Draw the best, middle and worst forecast, a film of the middle one, and the maps of error."""
    order = sorted(tally.csi_of, key=lambda name: -tally.csi_of[name])
    chosen = dict(
        zip(("best", "median", "worst"), (order[0], order[len(order) // 2], order[-1]), strict=True)
    )
    by_name = {subject.name: subject for subject in subjects}
    sheets = {}
    for kind, name in chosen.items():
        subject = by_name[name]
        found = next(rains_of(run, [subject]))[0]
        flow, _ = carried_on(subject, frames)
        rows = {"came": truth_of(subject.scene.labels), "forecast": found, "flow": flow}
        path = run.pictures / f"{split}-{kind}.png"
        draw_sheet(path, rows, frames.lead_names, f"{kind}: {name}, CSI {tally.csi_of[name]:.3f}")
        sheets[kind] = path.relative_to(run.path).as_posix()
        if kind == "median":
            film = run.pictures / f"{split}-film.gif"
            draw_film(film, rows, frames.lead_names, name)
    assert tally.error is not None
    assert tally.bias is not None
    assert tally.num is not None
    num = np.maximum(tally.num, 1)
    errors = run.pictures / f"{split}-errors.png"
    maps = {"mean |error|, mm/h": tally.error / num, "mean error, mm/h": tally.bias / num}
    draw_errors(errors, maps, f"{split}: {len(subjects)} forecasts, all leads")
    return {
        "sheets": sheets,
        "film": film.relative_to(run.path).as_posix(),
        "errors": errors.relative_to(run.path).as_posix(),
    }


def _read(path: Path) -> NDArray[np.float32]:
    """Read all bands of a forecast, NaN where it is unknown: each band has its own."""
    from outsize.raster.gdal import open_raster

    describe(path)
    with open_raster(str(path.absolute())) as opened:
        grids: NDArray[np.float32] = opened.read()
    return grids


def _threshold_of(path: Path) -> float:
    from outsize.raster.gdal import open_raster

    with open_raster(str(path.absolute())) as opened:
        try:
            return float(opened.tags()["threshold_mm_h"])
        except (KeyError, ValueError) as error:
            need, remedy = "the threshold that it was made for", "run `outsize predict` again"
            raise RunError(explain(f"{path} says no threshold", "no such tag", need, remedy)) from error
