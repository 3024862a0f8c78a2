"""Follows every step of the published tables, and those that were measured, and writes what it found; a test compares.

python docs/published_steps.py      # half a minute
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from outsize.planning.following import KNOWN, Followed, PublishedSteps, key_of
from outsize.report.published import NAMES, Publication, published


def wanted(table: Publication) -> Iterator[tuple[str, int]]:
    """Yield machine and batch of every step that is printed, or was measured by us."""
    for row in (*table.facts.get("steps", ()), *table.facts.get("measured", ())):
        yield row["gpu"], row["batch"]


def followed(table: Publication) -> dict[str, Followed]:
    """Return what following each of them tells."""
    steps = PublishedSteps(table, known={})
    found = {}
    for gpu, batch in wanted(table):
        each = steps.follow(gpu, batch)
        found[key_of(gpu, batch)] = Followed(_short(each.step_s), _short(each.device_s), each.saved_bytes)
    return found


def _short(seconds: float) -> float:
    return float(f"{seconds:.5g}")


def main() -> None:
    """Follow all, and write the file."""
    import torch

    tables = [published(name) for name in NAMES]
    found = {each.name: followed(each) for each in tables if "step" in each.facts}
    tree = {"columns": list(Followed._fields), "torch": torch.__version__, "steps": found}
    text = json.dumps(tree, indent=1)
    KNOWN.write_text(
        text.replace("[\n    ", "[").replace(",\n    ", ", ").replace("\n   ]", "]") + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
