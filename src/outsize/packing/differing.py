"""What is another than where a job was packed: machine, versions, plan; numbers in, words out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import OutsizeError
from outsize.files.plain import read_plain
from outsize.packing.lists import MOST_HEAD_BYTES, read_head
from outsize.packing.names import HEAD
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from outsize.planning.situation import Situation

_ALIKE = {"gpu_bytes": 0.05, "host_bytes": 0.25}  # what is free of a host changes all the time
_SAME = 0.05  # of a peak, or of a time
Tree = Mapping[str, Any]


def head_beside(job_path: Path) -> dict[str, Any] | None:
    """Return the head of the pack that a job came in; None where it came in none."""
    path = job_path.parent / HEAD
    try:
        return read_head(read_plain(path, MOST_HEAD_BYTES), path)
    except (OSError, OutsizeError):  # something else of that name
        return None


def summed(plan: Plan) -> dict[str, Any]:
    """Return of a plan what is told where another one takes its place."""
    told = {"peak_bytes": plan.peak_bytes, "limit_bytes": plan.limit_bytes, "step_s": plan.step_s}
    return {**told, "exact": plan.exact, "why": list(plan.why)}


def machine_of(where: Situation) -> dict[str, Any]:
    """Describe the machine at hand as benches do."""
    from outsize.bench.fingerprint import fingerprint_of

    assert where.device is not None
    return asdict(fingerprint_of(where.device, where.machine, where.rates, {}))


def say_differences(job_path: Path, where: Situation, plan: Plan, reporter: Reporter) -> None:
    """Say what is another here than where a job was packed, if it came in a pack."""
    from outsize.measure.origin import origin

    head = head_beside(job_path)
    if head is not None:
        lines = differences(head, machine_of(where), origin()["versions"], plan)
        reporter.say("moved", "\n".join(lines), packed_on=head["machine"])


def differences(head: Tree, machine: Tree, versions: Mapping[str, str], plan: Plan) -> list[str]:
    """Say in lines what is another here; the first says from where to where."""
    before = head["machine"]
    lines = [
        *_of_machine(before, machine),
        *_of_versions(head["versions"], versions),
        *_of_plan(head["plan"], plan),
    ]
    if not lines:
        return ["packed on a machine like this one: nothing differs"]
    rounds = _name(before) != _name(machine) or head["versions"].get("torch") != versions.get("torch")
    if rounds:
        lines.append(
            "other kernels round otherwise: a training goes on as well, and not the same to the last bit"
        )
    return [
        f"packed on {_name(before)}, planned here for {_name(machine)}:",
        *(f"  {each}" for each in lines),
    ]


def _name(machine: Tree) -> str:
    return str(machine.get("gpu") or machine.get("cpu") or machine.get("device"))


def _of_machine(before: Tree, now: Tree) -> Iterator[str]:
    for key, what in (("gpu", "GPU"), ("cpu", "CPU"), ("driver", "driver"), ("num_cores", "cores")):
        if before.get(key) != now.get(key):
            yield f"{what}: {_or_none(now.get(key))} instead of {_or_none(before.get(key))}"
    for key, what in (("gpu_bytes", "GPU memory"), ("host_bytes", "free host memory")):
        old, new = before.get(key), now.get(key)
        if (old is None) != (new is None) or (old and new and abs(new / old - 1) > _ALIKE[key]):
            shown = ["none" if each is None else format_bytes(each) for each in (new, old)]
            yield f"{what}: {shown[0]} instead of {shown[1]}"


def _of_versions(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in [*now, *(each for each in before if each not in now)]:
        if before.get(name) != now.get(name):
            yield f"{name} {_or_none(now.get(name))} instead of {_or_none(before.get(name))}"


def _of_plan(before: Tree | None, now: Plan) -> Iterator[str]:
    if not before:
        return
    if before["why"] != list(now.why):
        yield f"the step: {'; '.join(now.why)}, instead of: {'; '.join(before['why'])}"
    if before["exact"] != now.exact:
        yield f"the step is {'exact' if now.exact else 'approximate'} here"
    if abs(now.peak_bytes / max(1, before["peak_bytes"]) - 1) > _SAME:
        yield f"its peak: {format_bytes(now.peak_bytes)} instead of {format_bytes(before['peak_bytes'])}"
    old_s, new_s = before["step_s"], now.step_s
    if old_s and new_s and abs(new_s / old_s - 1) > _SAME:
        yield f"its time: {format_seconds(new_s)} instead of {format_seconds(old_s)} predicted"


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)
