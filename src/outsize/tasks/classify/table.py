"""The table of a prediction: a line for each picture, its class, and how likely each of them is."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outsize.errors import RunError, explain
from outsize.runs import as_written, write_beside

_HEAD = ("picture", "class", "probability")


@dataclass(frozen=True)
class Row:
    """What was found of one picture."""

    found: str  # name of the class; "": the model had no answer
    shares: tuple[float, ...]  # of each class

    @property
    def share(self) -> float:
        """How likely the class is that was found."""
        return max(self.shares) if self.found else math.nan


def write_table(path: Path, names: Sequence[str], rows: Mapping[str, Row]) -> None:
    """Write rows by the names of their pictures; what the table has of others stays."""
    kept = read_table(path, names) if path.is_file() else {}
    with write_beside(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*_HEAD, *names))
        for picture, row in {**kept, **rows}.items():
            shares = ["" if math.isnan(each) else f"{each:.4f}" for each in (row.share, *row.shares)]
            writer.writerow((picture, row.found, *shares))


def read_table(path: Path, names: Sequence[str]) -> dict[str, Row]:
    """Read the rows by the names of their pictures, with probabilities in the order of these classes."""
    try:
        with as_written(path, "predict"), path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            head = next(lines, [])
            places = [head.index(name, len(_HEAD)) for name in names]
            return {
                line[0]: Row(line[1], tuple(float(line[place] or "nan") for place in places))
                for line in lines
            }
    except OSError as error:
        found, need = error.strerror or str(error), "the table of a prediction"
        raise RunError(
            explain(f"{path} cannot be read", found, need, "run `outsize predict` first")
        ) from error
