"""Predicts the frames that come into grids with their times, probabilities and an animation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.frames import Levels, to_rain
from outsize.data.made import truth_beside
from outsize.errors import JobError, explain
from outsize.files.ownership import MADE_BY, NONE_GIVEN, Consent
from outsize.infer.ledger import add_to_ledger
from outsize.infer.outputs import taking
from outsize.infer.ready import Ready
from outsize.job import PredictSection
from outsize.measure.usage import watching, write_usage
from outsize.progress import Reporter
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo, describe
from outsize.raster.writing import write_grids
from outsize.runs import RunFolder
from outsize.tasks.forecast.answers import forecast, truth_of
from outsize.tasks.forecast.chance import Chances
from outsize.tasks.forecast.learning import learnt_chances
from outsize.tasks.forecast.sheet import draw_film
from outsize.units import clock, format_seconds, seconds_of


@dataclass(frozen=True)
class ForecastFiles:
    """What a forecast leaves."""

    rain: Path
    probability: Path | None = None
    film: Path | None = None
    threshold: float = 1.0  # mm/h, of the probability
    consent: Consent = NONE_GIVEN

    @property
    def paths(self) -> tuple[Path, ...]:
        """The grids of rain first."""
        return tuple(each for each in (self.rain, self.probability, self.film) if each is not None)

    @property
    def grows(self) -> bool:
        """It is of one forecast."""
        return False


def products_for(
    path: Path,
    section: PredictSection,
    info: SceneInfo,
    *,
    inside: AreaOfInterest | None = None,
    consent: Consent = NONE_GIVEN,
) -> ForecastFiles:
    """Return what a forecast leaves; `path` is without ending."""
    if inside is not None:
        need, remedy = "no area: rain comes from outside of it", "leave --aoi out and cut the grids"
        raise JobError(explain("an area of interest is not for forecasts", info.path.name, need, remedy))
    wanted = section.forecast
    return ForecastFiles(
        path.with_name(f"{path.name}.tif"),
        path.with_name(f"{path.name}_probability.tif") if wanted.probability else None,
        path.with_name(f"{path.name}.gif") if wanted.film else None,
        wanted.threshold,
        consent,
    )


def predict_scenes(
    run_path: Path,
    ready: Ready,
    scenes: Sequence[tuple[SceneInfo, ForecastFiles]],
    section: PredictSection,
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Forecast from several sequences, one after the other; returns what predict.json lists."""
    run, results = RunFolder(run_path), []
    chances = None
    if section.forecast.probability:
        chances = learnt_chances(run, ready, section.forecast.threshold, reporter)
    with watching(ready.settings.device) as usage, reporter.bar("predict", len(scenes), "forecast") as bar:
        for info, files in scenes:
            with taking(files.paths, info.path, files.consent):
                results.append(_predict(ready, info, files, chances))
            bar.advance()
            add_to_ledger(
                files.rain.parent, results[-1], {"run": str(run_path), "plan": ready.plan.as_dict()}
            )
        summary = usage.summary(len(scenes), images_at_once=1)
    write_usage(run_path, "predict", summary)
    for result in results:
        text = f"{result['start']}: {result['leads']} frames in {format_seconds(result['tiles_s'])}: {result['map']}"
        reporter.say("predicted", text, **result)
    return results


def predict_one(
    ready: Ready,
    info: SceneInfo,
    results: Sequence[Path],
    section: PredictSection,  # noqa: ARG001 (as all tasks)
    consent: Consent,
) -> dict[str, Any]:
    """Forecast from one sequence into grids, and return what was done."""
    files = ForecastFiles(results[0], consent=consent)
    with taking(files.paths, info.path, consent):
        return _predict(ready, info, files, None)


def _predict(ready: Ready, info: SceneInfo, files: ForecastFiles, chances: Chances | None) -> dict[str, Any]:
    began_s = time.perf_counter()
    found = forecast(ready.model, ready.card, info, ready.tiling_of(info), ready.settings)
    took_s = round(time.perf_counter() - began_s, 3)
    leads = [each.name for each in ready.card.classes]
    start = start_of(info)
    names = names_of(start, leads)
    tags = {"TIFFTAG_SOFTWARE": MADE_BY, "start": start}
    write_grids(files.rain, info.georef, to_rain(found), names, tags=tags, unit="mm/h", nodata=np.nan)
    result: dict[str, Any] = {"scene": str(info.path.resolve()), "map": str(files.rain), "start": start}
    if files.probability is not None and chances is not None:
        tags |= {"threshold_mm_h": f"{chances.threshold:g}"}
        write_grids(files.probability, info.georef, chances.of(found), names, tags=tags, nodata=np.nan)
        result["probability"] = str(files.probability)
    if files.film is not None:
        draw_film(files.film, _panels(info, found), leads, start)
        result["film"] = str(files.film)
    return {**result, "leads": len(leads), "tiles_s": took_s, **ready.about(info)}


def start_of(info: SceneInfo) -> str:
    """Return the time of the last frame that a forecast saw; "" where its file is not named by it."""
    stem = info.path.stem
    try:
        return clock(seconds_of(f"{stem[:4]}-{stem[4:6]}-{stem[6:11]}:{stem[11:13]}Z"))
    except ValueError:
        return ""


def names_of(start: str, leads: Sequence[str]) -> list[str]:
    """Name the bands of a forecast by the times they are of, and by their leads."""
    if not start:
        return list(leads)
    minutes = [float(name.removesuffix(" min")) for name in leads]
    times = [clock(seconds_of(start) + round(60 * each)) for each in minutes]
    return [f"{time} ({name})" for time, name in zip(times, leads, strict=True)]


def _panels(info: SceneInfo, found: Levels) -> dict[str, Levels]:
    """Return the forecast, and beside it what came, where that is known."""
    truth = truth_beside(info.path)
    return {"forecast": found} | ({"came": truth_of(describe(truth))} if truth.is_file() else {})
