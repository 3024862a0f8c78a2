"""Runs `outsize bench batch` twice, and says of each batch whether the two agree within the spread that they state.

    python benchmarks/batch_twice.py runs/demo/demo.toml RUNS [--set KEY=VALUE] [--batches 1,8,32] [--device cpu]

Each run is a process of its own, as a user would type it. RUNS/first and RUNS/second keep the figures. It ends with 1
where a batch does not agree; on a machine that others use it may.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chain import run_chain

from outsize.measurement import Figure, read_measurement


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--batches", default=None)
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    words = ["bench", "batch", options.job, "--rounds", options.rounds, "--device", options.device]
    words += [] if options.batches is None else ["--batches", options.batches]
    words += [word for each in options.set for word in ("--set", each)]
    names = ("first", "second")
    steps = {name: [*words, "--out", str(options.runs / name)] for name in names}
    seconds, failed = run_chain("bench batch", steps, options.runs / "batch.log")
    if failed:
        sys.exit("\n".join(failed["said"]))
    rows = [read_measurement(options.runs / name / "bench/batch.json").rows for name in names]
    agreed = True
    print("| batch | first | second | second over first | agree |\n|---|---|---|---|---|")
    for one, two in zip(*rows, strict=False):
        if one.get("step_s") and two.get("step_s"):
            first, second = Figure(**one["step_s"]), Figure(**two["step_s"])
            agrees = first.agrees_with(second)
            agreed &= agrees
            told = [f"{1e3 * each.median:.2f} ms ± {each.spread:.1%}" for each in (first, second)]
            ratio = f"{second.median / first.median:.3f}"
            print(f"| {one['batch']} | {' | '.join(told)} | {ratio} | {'yes' if agrees else 'no'} |")
    print(f"{seconds['first']} and {seconds['second']} s")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
