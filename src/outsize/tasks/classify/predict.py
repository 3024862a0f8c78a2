"""Predicts the classes of pictures into a table, with a sheet of the first of them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.pictures import PictureFile, Pictures
from outsize.data.recall import recall_picture_px
from outsize.errors import JobError, explain
from outsize.files.ownership import NONE_GIVEN, Consent
from outsize.infer.ledger import add_to_ledger
from outsize.infer.ready import Ready
from outsize.job import PredictSection
from outsize.measure.usage import watching, write_usage
from outsize.progress import Reporter
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo
from outsize.runs import RunFolder
from outsize.tasks.classify.answers import Shares, answer_all, classes_in, num_at_once
from outsize.tasks.classify.sheet import MOST_SHOWN, Shown, draw_sheet
from outsize.tasks.classify.table import Row, write_table
from outsize.tasks.classify.terms import picture_px_of
from outsize.units import format_count, format_seconds

TABLE, SHEET = "classes.csv", "sheet.png"


@dataclass(frozen=True)
class PictureProducts:
    """What a prediction of pictures leaves in a folder; one for all of them."""

    folder: Path
    consent: Consent = NONE_GIVEN

    @property
    def paths(self) -> tuple[Path, ...]:
        """The table and the sheet."""
        return self.folder / TABLE, self.folder / SHEET

    @property
    def grows(self) -> bool:
        """It is one for many pictures."""
        return True


def products_for(
    path: Path,
    section: PredictSection,  # noqa: ARG001 (as all tasks)
    info: SceneInfo,
    *,
    inside: AreaOfInterest | None = None,
    consent: Consent = NONE_GIVEN,
) -> PictureProducts:
    """Return what a prediction leaves; `path` is without ending."""
    if inside is not None:
        need, remedy = "no area: a picture has one class as a whole", "leave --aoi out"
        raise JobError(explain("an area of interest is not for pictures", info.path.name, need, remedy))
    return PictureProducts(path.parent, consent)


def predict_scenes(
    run_path: Path,
    ready: Ready,
    scenes: Sequence[tuple[SceneInfo, PictureProducts]],
    section: PredictSection,  # noqa: ARG001 (as all tasks)
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Predict pictures, many at once, into one table; returns what predict.json lists."""
    run = RunFolder(run_path)
    known = recall_picture_px(run.split) if run.split.is_file() else {}
    infos = [info for info, _ in scenes]
    files = [PictureFile(info, known.get(info.path, (info.height, info.width))) for info in infos]
    pictures = Pictures(files, picture_px_of(ready.model))
    began_s = time.perf_counter()
    num = len(pictures)
    with watching(ready.settings.device) as usage, reporter.bar("predict", num, "picture") as bar:
        at_once = num_at_once(ready.model, ready.tiling, ready.settings)
        shares = answer_all(
            ready.model, pictures, ready.card.statistics, ready.settings, at_once, advance=bar.advance
        )
        summary = usage.summary(num, images_at_once=at_once)
    write_usage(run_path, "predict", summary)
    products = scenes[0][1]
    result = _written(products, ready, pictures, shares, infos)
    result |= {
        "tiles_s": round(time.perf_counter() - began_s, 3),
        "exact": True,
        "precision": ready.settings.precision,
    }
    add_to_ledger(products.folder, result, {"run": str(run_path), "plan": ready.plan.as_dict()})
    found = ", ".join(f"{count:,} {name}" for name, count in result["classes"].items() if count)
    text = f"{format_count(num, 'picture')} in {format_seconds(result['tiles_s'])}: {found}: {result['map']}"
    reporter.say("predicted", text, **result)
    if result["unanswered"]:
        num_lost = format_count(result["unanswered"], "picture")
        text = f"warning: {num_lost} without a class, for the logits there are NaN or infinite"
        reporter.say("warning", text, unanswered=result["unanswered"])
    return [result]


def predict_one(
    ready: Ready,
    info: SceneInfo,
    results: Sequence[Path],
    section: PredictSection,  # noqa: ARG001 (as all tasks)
    consent: Consent,  # noqa: ARG001
) -> dict[str, Any]:
    """Predict the class of one picture into a table, and return what was done."""
    names = [each.name for each in ready.card.classes]
    pictures = Pictures([PictureFile(info, (info.height, info.width))], picture_px_of(ready.model))
    shares = answer_all(ready.model, pictures, ready.card.statistics, ready.settings, 1)
    write_table(results[0], names, _rows(names, pictures, shares))
    found = names_of(names, shares)[0]
    return {"scene": str(info.path), "map": str(results[0]), "class": found, "exact": True}


def names_of(names: Sequence[str], shares: Shares) -> list[str]:
    """Name the class of each picture; "" where a model had no answer."""
    return [names[found] if found < len(names) else "" for found in classes_in(shares).tolist()]


def _rows(names: Sequence[str], pictures: Pictures, shares: Shares) -> dict[str, Row]:
    classes = names_of(names, shares)
    return {
        pictures.name(index): Row(found, tuple(shares[index].tolist())) for index, found in enumerate(classes)
    }


def _written(
    products: PictureProducts, ready: Ready, pictures: Pictures, shares: Shares, infos: Sequence[SceneInfo]
) -> dict[str, Any]:
    """Write the table and the sheet, and say what is in them."""
    names = [each.name for each in ready.card.classes]
    table, sheet = products.paths
    rows = _rows(names, pictures, shares)
    write_table(table, names, rows)
    shown = [
        Shown(index, f"{row.found}: {row.share:.0%}" if row.found else "no answer", not row.found)
        for index, row in enumerate(list(rows.values())[:MOST_SHOWN])
    ]
    title = f"{len(shown)} of {format_count(len(pictures), 'picture')}: class, probability"
    draw_sheet(sheet, pictures, shown, ready.card.bands, title)
    found = np.bincount(classes_in(shares), minlength=256)
    paths = [info.path.resolve() for info in infos]
    return {
        "scene": str(paths[0]) if len(paths) == 1 else os.path.commonpath(paths),
        "map": str(table),
        "picture": str(sheet),
        "num_pictures": len(pictures),
        "classes": dict(zip(names, found[: len(names)].tolist(), strict=True)),
        "unanswered": int(found[len(names) :].sum()),
    }
