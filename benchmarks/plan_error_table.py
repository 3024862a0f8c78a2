"""Tells the rows of plan_error.py: line by line, summed up, and as a table."""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WAYS = ("plain", "recompute", "blocks", "swap", "compiled", "compiled, half", "predict")
HEAD = """# Predicted against measured memory and time

What [`outsize plan`](../../docs/plan.md) says before anything runs, and what a GPU then took.
`python benchmarks/plan_error.py` makes such a page, on a machine with one. Ways: a plain training step; tensors that
are recomputed (`recompute`); whole blocks that run again (`blocks`); tensors that are swapped to host memory as well
(`swap`); blocks compiled; and prediction. Memory is the peak that torch's allocator counts
(`torch.cuda.max_memory_allocated`), predicted from shapes alone; of compiled steps, into which nobody can look, from
half a batch of the first size that was run beforehand. Times are predicted three times: from the data sheet of the GPU
(`catalogue`), from what was measured of the machine (`rates`), and after one real step of the same network at another
size (`profiled`).
"""


def line(row: dict[str, Any]) -> str:
    """Say one row in one line."""
    name = " ".join(str(row[key]) for key in ("model", "side_px", "batch", "precision", "way"))
    if "failed" in row:
        return f"{name}: FAILED {row['failed']}"
    both = zip(row["parts_predicted_mib"].items(), row["parts_measured_mib"].values(), strict=True)
    apart = {part: round(ours - theirs, 1) for (part, ours), theirs in both}
    most = max(apart, key=lambda part: abs(apart[part]))
    times = ", ".join(f"{kind} {_percent(each)}" for kind, each in row["time_error"].items())
    return (
        f"{name}: {row['predicted_mib']} MiB predicted, {row['measured_mib']} measured, {_percent(row['error'])}"
        f" (most in {most}: {apart[most]:+} MiB; {row['peak_predicted']} | {row['peak_measured']});"
        f" {row['measured_ms']} ms, {times}{' ' if row['told'] else ''}{' '.join(row['told'])}"
    )


def is_same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both are about the same step: of rows of several runs the last counts."""
    return all(row[key] == other[key] for key in ("model", "side_px", "batch", "precision", "way"))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Say the worst and the median error of memory and of each kind of time, and how many rows failed."""
    done = [row for row in rows if "failed" not in row]
    lines = [f"{len(done)} rows, {len(rows) - len(done)} failed or not reached"]
    columns = {"memory": [(row["error"], row) for row in done]}
    for kind in ("catalogue", "rates", "profiled"):
        pairs = [(row["time_error"][kind], row) for row in done]
        columns[f"time, {kind}"] = [pair for pair in pairs if pair[0] is not None]
    for name, pairs in columns.items():
        if pairs:
            worst, row = max(pairs, key=lambda pair: abs(pair[0]))
            median = statistics.median(abs(each) for each, _ in pairs)
            where = " ".join(str(row[key]) for key in ("model", "side_px", "precision", "way"))
            lines.append(f"{name}: worst {worst:+.1%} ({where}), median {median:.1%} of {len(pairs)}")
    return lines


def place_for(device: str) -> Path:
    """Return where results of a device go: today's file, without its ending."""
    words = "".join(each if each.isalnum() else "-" for each in device.lower().removeprefix("nvidia")).strip(
        "-"
    )
    return Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-{words}-plan-error"


def rows_of(place: Path) -> list[dict[str, Any]]:
    """Return the rows of an earlier run that were reached."""
    tree: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return [row for row in tree["rows"] if "failed" not in row]


def _in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of one network, precision and way beside one another."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    ways = {way: place for place, way in enumerate(WAYS)}

    def place(row: dict[str, Any]) -> tuple[int, str, int, int]:
        return models.index(row["model"]), row["precision"], ways.get(row["way"], -1), row["side_px"]

    return sorted(rows, key=place)


def write(place: Path, rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    """Write all rows, for programs and for people."""
    place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"about": about, "rows": list(rows)}, indent=1) + "\n"
    place.with_name(f"{place.name}.json").write_text(text, encoding="utf-8")
    head = "| model | px | batch | precision | way | predicted MiB | measured MiB | error |"
    head += " measured ms | catalogue | rates | profiled |"
    told = [f"- {each}" for each in summary(rows)]
    lines = [HEAD, *told, "", head, "|" + "---|" * 12]
    for row in _in_order(rows):
        cells = [row[key] for key in ("model", "side_px", "batch", "precision", "way")]
        if "failed" in row:
            cells += [row["failed"], *[""] * 6]
        else:
            cells += [row["predicted_mib"], row["measured_mib"], _percent(row["error"]), row["measured_ms"]]
            for kind, each in row["predicted_ms"].items():
                cells.append("" if each is None else f"{each} ({_percent(row['time_error'][kind])})")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", *(f"- {key}: {value}" for key, value in about.items())]
    place.with_name(f"{place.name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
