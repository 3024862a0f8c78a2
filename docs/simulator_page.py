"""Writes docs/simulator.md: what the simulator says of tables that others published; a test keeps the page true.

python docs/simulator_page.py > docs/simulator.md
python docs/simulator_page.py picture > docs/schedule.svg

Rates of GPUs and links are those of the catalogues, fixed before the first comparison. Nothing is fitted on a row that
is reported: the one fitted number, how much the steps of a GPU differ, comes from the other families of tables.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from outsize.plan.links import Network, find_link
from outsize.plan.machines import find_machine
from outsize.plan.partition import Terms, cut_chain
from outsize.plan.simulate.cluster import STEP_SPREAD
from outsize.plan.simulate.exchange import HostCopies, exposed_s, sum_gradients_s
from outsize.plan.simulate.pipeline import Order, Played, play, stages_of
from outsize.plan.simulate.replicas import slowest_of, split_input
from outsize.plan.simulate.unets import FlatUNet
from outsize.plan.times import Clock
from outsize.report.published import Publication, published
from outsize.report.schedule import Slice, draw_schedule

_SPREADS = [step * 1e-4 for step in range(400)]
_ASSUMED_PX = 1024  # of the pipelines by name, whose pictures are not given
_ABOVE = """# The simulator against published tables

`plan/simulate` plays trainings out on GPUs that need not be here. This page compares it with tables that others
published (`report/published`, with sources), and each row with the null model "n GPUs are n times as fast".
`python docs/simulator_page.py > docs/simulator.md` writes it; no GPU is needed.

Rates of GPUs and of links are those of [docs/machines.md](machines.md), which were fixed before the first comparison.
What a table does not say is assumed in its file and named there, such as the network and the link of nowcasting.
"""
_REPLICAS = """## Replicas: efficiency of 2 to 1,200 GPUs

Work of one GPU is taken from the first row of each table; sums of gradients from bytes and links. *Not
fitted* has these alone. *Left out* also waits for the slowest of n, with a spread of steps that is fitted to
the other families only.

| table | row | GPUs | published | not fitted | left out | its spread | error | error of "times n" |
|---|---|---|---|---|---|---|---|---|
{rows}

Root mean square error of efficiency, in points: "times n" **{null:.2f}**, not fitted **{plain:.2f}**
({plain_part:.2f} of it), left out **{left:.2f}** ({left_part:.2f} of it). Fitted to all of them the spread is
{spread:.2%}; plans count on {constant:.1%}.
"""
_PIPES = """## Stages: torchgpipe's U-Net (5, 64) on P40

From data sheets alone: kernels from rates, messages over PCIe 3.0, GPipe with forward run again for all
micro-batches but the last, layers cut as published. Faster than the row "baseline", as published and as
predicted:

| row | stages | micro-batches | published | predicted | error | error of "times n" | waiting | samples/s \
published | predicted |
|---|---|---|---|---|---|---|---|---|---|
{rows}

Samples per second by themselves are {low:.0%} to {high:.0%} off, all in one direction: convolutions of 3 x 3
in float32 reached more on a P40 than the share of the peak that the catalogue takes, which is a guess for
float32 ([docs/machines.md](machines.md)). Were they twice as fast, samples per second would be
{fast_low:+.0%} to {fast_high:+.0%} off, and the ratios {ratio_low:+.0%} to {ratio_high:+.0%}.

![four ranks at work](schedule.svg)
"""
_SUMMIT = """## Stages: the U-Nets on 6 V100 of a Summit node

The deck gives speed-ups, and neither batch nor micro-batches. Assumed: a batch that one GPU holds by itself
without a pipeline, for otherwise there is nothing to compare with, one sample in a micro-batch; torchgpipe's
64 channels; for the rows by name {px} px, for the rows by size the small network. That assumption was made
with the table in sight. With as many micro-batches as one likes the prediction is {many:.1f} for every size,
{off:+.0%} for the row of 1024 px.

| row | px | micro-batches | published | predicted | error | error of "times n" |
|---|---|---|---|---|---|---|
{rows}
"""
_OBJECTS = """## One process that reads for all: Mask R-CNN on 1 to 4 GPUs

Seconds per picture are a part in series and a part that GPUs share, found from 1 and 4 GPUs: {series:.2f} s
and {parallel:.2f} s.

| GPUs | published | predicted | error | error of "times n" |
|---|---|---|---|---|
{rows}
"""
_NOT = """## Rows that are not predicted

- The first row of each table of replicas, `baseline` of torchgpipe, 1 and 4 GPUs of Mask R-CNN: predictions
  start from them.
- 20 CPUs of Mask R-CNN, two processes on one GPU, four pictures on one GPU: neither CPU nor GPU is named.
- torchgpipe's memory tables up to 15.8 G weights: allocator and workspace of another torch; its timeline
  without ordering, copy streams or portals: faults of one implementation, which a simulation of schedules
  does not have.
- The large network of the U-Nets on Summit: a balance is published, no speed-up.
- Epochs of 12 s on 1,200 GPUs are rounded to 0.5 s, {rounded:.1f} points of efficiency: no model can be told
  right or wrong closer than that.
"""


@dataclass(frozen=True)
class Row:
    """A published efficiency, and what a step of that row is made of."""

    family: str
    name: str
    num: int
    num_first: int  # GPUs of the row that the others are compared with
    work_s: float
    gradients_s: float
    seen: float

    def predicted(self, spread: float) -> float:
        """Return the efficiency against the first row."""
        first = 1 + spread * slowest_of(self.num_first)
        return first / (1 + self.gradients_s / self.work_s + spread * slowest_of(self.num))


@dataclass(frozen=True)
class Pipe:
    """A published speed-up of stages, and the one predicted."""

    name: str
    stages: int
    num_micro: int
    seen: float
    predicted: float
    idle: float
    samples_per_s: float = 0.0
    seen_samples_per_s: float = 0.0
    side_px: int = 0

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.seen - 1


def replicas() -> list[Row]:
    """Return all rows of data-parallel tables but the first ones."""
    return [*_cray("fastbox-p100"), *_cray("nowcasting-p100"), _summit()]


def _cray(name: str) -> Iterator[Row]:
    table = published(name)
    facts = table.facts
    between = find_link(facts["link"])
    inside = find_link(facts["inside"]) if "inside" in facts else between
    net = Network(inside, between, facts.get("gpus_per_host", 1))
    rates = find_machine(facts["gpu"]).rates
    assert rates.to_host_bytes_per_s is not None
    assert rates.to_device_bytes_per_s is not None
    copies = HostCopies(rates.to_host_bytes_per_s, rates.to_device_bytes_per_s)
    num_bytes = facts["parameters"] * facts["bytes_per_gradient"]
    first: dict[int, Mapping[str, Any]] = {}
    for row in table.rows:
        batch, num = row["batch_per_gpu"], row["gpus"]
        one = first.setdefault(batch, row)
        if row is not one:
            seen = row["samples_per_s"] / one["samples_per_s"] / num
            summed_s = sum_gradients_s(num_bytes, num, net, copies)
            family, label = name.split("-", maxsplit=1)[0], f"batch {batch}"
            yield Row(family, label, num, one["gpus"], batch / one["samples_per_s"], summed_s, seen)


def _summit() -> Row:
    table = published("unet-summit")
    facts, (first, last) = table.facts, table.rows
    net = Network(find_link(facts["inside"]), find_link(facts["link"]), facts["gpus_per_host"])
    steps = facts["samples_per_epoch"] / first["gpus"]
    work_s = first["epoch_s"] / steps
    num_bytes, backward_s = facts["parameters"] * facts["bytes_per_gradient"], work_s * 2 / 3
    # gradients come evenly over backward, the last ones with its end
    ready = [(backward_s * (part + 1) / 50, num_bytes / 50) for part in range(50)]
    late_s = exposed_s(ready, backward_s, lambda size: sum_gradients_s(size, last["gpus"], net))
    seen = first["epoch_s"] * first["gpus"] / (last["epoch_s"] * last["gpus"])
    return Row("unet", "one tile each", last["gpus"], first["gpus"], work_s, late_s, seen)


def fitted(rows: Sequence[Row]) -> float:
    """Return the spread of steps that fits these rows best."""
    return min(_SPREADS, key=lambda spread: sum((row.predicted(spread) - row.seen) ** 2 for row in rows))


def left_out(row: Row, rows: Sequence[Row]) -> float:
    """Return the spread that the other families say."""
    return fitted([each for each in rows if each.family != row.family])


def rms(errors: Sequence[float]) -> float:
    """Return the root mean square, in points."""
    return 100 * math.sqrt(sum(each**2 for each in errors) / len(errors))


def torchgpipe(faster: float = 1.0) -> list[Pipe]:
    """Return torchgpipe's rows of speed, the baseline first; with arithmetic that is faster than the catalogue says."""
    table = published("torchgpipe-unet")
    facts = table.facts
    net = FlatUNet(facts["convs_per_cell"], facts["channels"], facts["depth"], facts["side_px"])
    first_s, found = 0.0, []
    for row in table.rows:
        played = _gpipe(net, row, table, again=bool(row["stages"]), faster=faster)
        step_s, idle = played.step_s, played.idle_share
        per_s = row["batch"] / step_s
        first_s = first_s or per_s
        seen = row["samples_per_s"]
        found.append(
            Pipe(
                row["name"],
                row["stages"],
                row["micro_batches"],
                seen / table.rows[0]["samples_per_s"],
                per_s / first_s,
                idle,
                per_s,
                seen,
            )
        )
    return found


def _gpipe(
    net: FlatUNet, row: Mapping[str, Any], table: Publication, *, again: bool, faster: float = 1.0
) -> Played:
    rates, link = find_machine(table.facts["gpu"]).rates, find_link(table.facts["inside"])
    rates = replace(rates, fp32_flops_per_s=rates.fp32_flops_per_s * faster)
    num_micro = row["micro_batches"]
    chain = net.chain(row["batch"] // num_micro, Clock(rates, tf32=False, overlaps=True))
    ends = tuple(accumulate(row["balance"]))
    terms = Terms(len(ends), num_micro, math.inf, link.bytes_per_s, link.latency_s, in_flight="all")
    stages = stages_of(chain, cut_chain(chain, terms, ends))
    if again:
        works = tuple(replace(work, recompute_s=work.forward_s) for work in stages.works)
        stages = replace(stages, works=works)
    return play(stages, num_micro, "gpipe", Order(last_first=True, keeps_last=True))


def summit_pipes(num_micro: int | None = None) -> list[Pipe]:
    """Return the speed-ups of six stages, with as many micro-batches as one GPU holds samples, or as given."""
    table = published("unet-summit")
    spec = find_machine(table.facts["gpu"])
    rows = table.facts["pipelines"]
    small = next(row for row in rows if row.get("name") == "small")
    found = []
    for row in rows:
        shape = small | row
        side_px = row.get("side_px", _ASSUMED_PX)
        net = FlatUNet(shape["convs_per_cell"], 64, shape["depth"], side_px, in_channels=4)
        clock = Clock(spec.rates, tf32=False, overlaps=True)
        one = net.chain(1, clock)
        length = len(one)
        room_bytes = spec.usable_bytes - one.state_bytes(0, length)
        num = num_micro or max(1, room_bytes // one.saved_bytes(0, length))
        plain = net.chain(num, clock)
        alone_s = plain.forward_s(0, length) + plain.backward_s(0, length)
        asked = {"batch": num, "micro_batches": num, "balance": shape["balance"]}
        played = _gpipe(net, asked, table, again=True)
        name = row.get("name", f"{side_px} px")
        found.append(
            Pipe(name, 6, num, row["speedup"], alone_s / played.step_s, played.idle_share, side_px=side_px)
        )
    return found


def mask_rcnn() -> tuple[tuple[float, float], list[tuple[int, float, float]]]:
    """Return series and parallel seconds of a picture, and published and predicted ones of 2 and 3 GPUs."""
    seen = {row["gpus"]: row["s_per_image"] for row in published("mask-rcnn-gis").rows}
    series_s, parallel_s = split_input((1, seen[1]), (4, seen[4]))
    return (series_s, parallel_s), [(num, seen[num], series_s + parallel_s / num) for num in (2, 3)]


def page() -> str:
    """Return the whole page."""
    rows = replicas()
    rounded = published("unet-summit").rows[1]
    return "\n".join(
        [
            _ABOVE,
            _replicas_text(rows),
            _pipes_text(),
            _summit_text(),
            _objects_text(),
            _NOT.format(rounded=100 * rounded["rounded_s"] / rounded["epoch_s"]),
        ]
    )


def _replicas_text(rows: Sequence[Row]) -> str:
    lines = []
    spreads = [left_out(row, rows) for row in rows]
    for row, spread in zip(rows, spreads, strict=True):
        said = row.predicted(spread)
        lines.append(
            f"| {row.family} | {row.name} | {row.num:,} | {row.seen:.1%} | {row.predicted(0):.1%} | {said:.1%} | "
            f"{spread:.2%} | {100 * (said - row.seen):+.1f} | {100 * (1 - row.seen):+.1f} |"
        )
    null = rms([1 - row.seen for row in rows])
    plain = rms([row.predicted(0) - row.seen for row in rows])
    left = rms([row.predicted(spread) - row.seen for row, spread in zip(rows, spreads, strict=True)])
    return _REPLICAS.format(
        rows="\n".join(lines),
        null=null,
        plain=plain,
        plain_part=plain / null,
        left=left,
        left_part=left / null,
        spread=fitted(rows),
        constant=STEP_SPREAD,
    )


def _pipes_text() -> str:
    pipes = torchgpipe()
    lines = [
        f"| {each.name} | {max(1, each.stages)} | {each.num_micro} | {each.seen:.3f} | {each.predicted:.3f} | "
        f"{each.error:+.1%} | {max(1, each.stages) / each.seen - 1:+.1%} | {each.idle:.0%} | "
        f"{each.seen_samples_per_s:.1f} | {each.samples_per_s:.1f} |"
        for each in pipes
    ]
    off = [each.samples_per_s / each.seen_samples_per_s - 1 for each in pipes]
    fast = torchgpipe(faster=2.0)
    fast_off = [each.samples_per_s / each.seen_samples_per_s - 1 for each in fast]
    ratios = [each.error for each in fast]
    return _PIPES.format(
        rows="\n".join(lines),
        low=min(off),
        high=max(off),
        fast_low=min(fast_off),
        fast_high=max(fast_off),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
    )


def picture() -> str:
    """Return the schedule of torchgpipe's timeline on four GPUs."""
    table = published("torchgpipe-unet")
    facts = table.facts
    net = FlatUNet(facts["convs_per_cell"], facts["channels"], facts["depth"], facts["side_px"])
    row = next(row for row in table.rows if row["name"] == "timeline")
    played = _gpipe(net, row, table, again=True)
    slices = [Slice(each.rank, each.doing, each.micro, each.start_s, each.end_s) for each in played.beats]
    title = (
        f"U-Net (5, 64) in 4 stages, 8 micro-batches, GPipe: {played.idle_share:.0%} of the time ranks wait"
    )
    return draw_schedule(slices, title) + "\n"


def _summit_text() -> str:
    lines = [
        f"| {each.name} | {each.side_px} | {each.num_micro} | {each.seen:.2f} | {each.predicted:.2f} | "
        f"{each.error:+.1%} | {each.stages / each.seen - 1:+.1%} |"
        for each in summit_pipes()
    ]
    many = next(each for each in summit_pipes(32) if each.name == "1024 px")
    return _SUMMIT.format(rows="\n".join(lines), px=_ASSUMED_PX, many=many.predicted, off=many.error)


def _objects_text() -> str:
    (series_s, parallel_s), rows = mask_rcnn()
    first_s = published("mask-rcnn-gis").rows[0]["s_per_image"]
    lines = [
        f"| {num} | {seen_s:.3f} s | {said_s:.3f} s | {said_s / seen_s - 1:+.1%} | {first_s / num / seen_s - 1:+.1%} |"
        for num, seen_s, said_s in rows
    ]
    return _OBJECTS.format(rows="\n".join(lines), series=series_s, parallel=parallel_s)


if __name__ == "__main__":
    print(picture() if "picture" in sys.argv else page(), end="")
