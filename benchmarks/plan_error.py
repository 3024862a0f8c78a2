"""Predicted against measured: the peak memory and the time of training steps and predictions, one row for each.

    python benchmarks/plan_error.py [--device cuda] [--quick] [--out FOLDER/NAME] [--seconds 340] [--cap-gib 64]

Four networks, three sizes, float32 (TF32 in convolutions, as torch has it) and bfloat16; ways: a plain training step,
one that recomputes all cheap operations, one that recomputes blocks, and prediction. The prediction comes from shapes
alone (measure/step.py, plan/cost.py); what is measured is the step that strategies/compose.py makes of the plan.

Measured memory is torch.cuda.max_memory_allocated less what the process held before. On the CPU, with tiny networks,
it is the sum of live storages: that shows whether the model of a step is right, and nothing about a GPU's libraries.
Times: "catalogue" from the data sheet, "rates" from this machine's measured rates, "profiled" from the catalogue
corrected by class of operation after one profiled step of the same network at another size. A row whose own step
was profiled has no such prediction.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from plan_error_measured import (
    ADAMW,
    BANDS,
    CLASSES,
    CLASSES_OF_OPS,
    LOSS,
    MIB,
    Case,
    Network,
    Parts,
    make_ready,
    peak_on_cpu,
    peak_on_cuda,
    profiled_seconds,
    step_seconds,
)
from torch import nn

from outsize.errors import PlanError
from outsize.measure.bandwidth import measure, recall_or_measure
from outsize.measure.step import BLOCK_BYTES, trace_step
from outsize.models import build_model
from outsize.plan.blocks import list_blocks
from outsize.plan.cost import NOTHING, Changed, StepCost
from outsize.plan.machines import Rates, find_machine, op_seconds
from outsize.plan.plan import Recompute
from outsize.plan.recompute import changed_by, choose_recipes, find_recipes
from outsize.plan.step import StepOp
from outsize.tasks.segment import loss_on_shapes

TINY_PX = 64  # a step so small that a GPU waits for the host


@dataclass(frozen=True)
class Way:
    """One way to run a case: the plan's setting, its predicted memory, and every operation that it runs."""

    name: str
    recompute: Recompute | None
    predicted: Parts
    ops: tuple[StepOp, ...]


@dataclass
class Clock:
    """What predicts times: rates, and what profiled steps and tiny steps have taught."""

    catalogue: Rates
    measured: Rates
    tf32: bool
    factors: dict[tuple[str, bool, bool], dict[str, float]] = field(default_factory=dict)
    host_s: dict[tuple[str, bool, str], float] = field(default_factory=dict)

    def seconds(self, ops: Sequence[StepOp], rates: Rates) -> dict[str, float]:
        """Return the time of each class of operations."""
        found = dict.fromkeys(CLASSES_OF_OPS, 0.0)
        for op in ops:
            kind = CLASSES_OF_OPS[2] if not op.flops else CLASSES_OF_OPS[op.backward]
            found[kind] += op_seconds(op, rates, tf32=self.tf32)
        return found


NETWORKS = (
    Network("wider_resnet38"),
    Network("unet", {"width": 64}),
    Network("smp:DeepLabV3Plus/resnet101"),
    Network("smp:DeepLabV3Plus/resnet18"),
)
TINY = (Network("wider_resnet38", {"width": 4}), Network("unet", {"width": 8, "levels": 4}))
TINY_MORE = (*TINY, Network("smp:DeepLabV3Plus/resnet18"))


def cases(device: str, *, quick: bool) -> Iterator[Case]:
    """Yield what is compared, the most telling first: a middle size of every network in both precisions."""
    networks: tuple[Network, ...] = NETWORKS
    trained, predicted = [(512, 4), (800, 2), (256, 4)], [1024, 2048, 512]
    if device == "cpu":
        networks = TINY if quick else TINY_MORE
        trained, predicted = [(64, 2), (96, 2)], [128, 160]
    # quick: two networks at one size, and the second of them at another, in one precision
    chosen = (networks[:2], networks[1:2]) if quick else (networks,) * len(trained)
    for place, (some, (side_px, batch), predict_px) in enumerate(
        zip(chosen, trained, predicted, strict=False)
    ):
        for network in some:
            for bf16 in (False,) if quick and place else (True, False):
                yield Case(network, side_px, batch, bf16, training=True)
                yield Case(network, predict_px, 1, bf16, training=False)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    options = _options(arguments)
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
        torch.backends.cudnn.benchmark = False
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap_gib * 2**30 / total_bytes), device)
    else:
        torch.set_num_threads(1)  # tiny networks: on a busy machine a second thread costs more than it brings
    clock, about = _clock(device)
    about |= {"command": "python benchmarks/plan_error.py " + " ".join(arguments or sys.argv[1:])}
    about |= {"cap_gib": options.cap_gib}
    place = options.out or _place(about["device"])
    rows: list[dict[str, Any]] = []
    start_s = time.perf_counter()
    models: dict[str, nn.Module] = {}
    for case in cases(device.type, quick=options.quick):
        if time.perf_counter() - start_s > options.seconds:
            rows.append({**_name(case, "all"), "failed": "not reached in the time given"})
            continue
        if case.network.name not in models:
            models[case.network.name] = _build(case.network)
        for row in _rows(models[case.network.name], case, clock, device):
            rows.append(row)
            print(_line(row), flush=True)
        # after each, so that a run that is cut short leaves what it has seen
        _write(place, rows, {**about, "took_s": round(time.perf_counter() - start_s)})
    print("\n".join(_summary(rows)))
    return rows


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=340.0)
    parser.add_argument("--cap-gib", type=float, default=64.0)
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args(arguments)


def _clock(device: torch.device) -> tuple[Clock, dict[str, Any]]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    try:
        spec = find_machine(name)
    except PlanError as error:
        spec = find_machine("h200")
        print(f"{error}; times of the catalogue are those of {spec.title}", flush=True)
    # on the CPU in a hurry, and not to be remembered
    seen = recall_or_measure(device) if device.type == "cuda" else measure(device, budget_s=0.2)
    about: dict[str, Any] = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "catalogue": spec.title}
    return Clock(spec.rates, seen.rates(), spec.rates.tf32_flops_per_s is not None), about


def _build(network: Network) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(network.name, num_classes=CLASSES, in_channels=BANDS, **network.options)
    return model.to(memory_format=torch.channels_last)


def _rows(model: nn.Module, case: Case, clock: Clock, device: torch.device) -> Iterator[dict[str, Any]]:
    ways: list[Way] = []
    try:
        ways = _predict(model, case, clock, device)
    except Exception as error:  # noqa: BLE001 - a row that fails says so, and the others follow
        yield {**_name(case, "all"), "failed": f"prediction: {_first_line(error)}"}
    for way in ways:
        try:
            model.to(device)
            yield _compare(model, case, way, clock, device)
        except Exception as error:  # noqa: BLE001 - as above
            yield {**_name(case, way.name), "failed": _first_line(error)}
        finally:
            model.zero_grad(set_to_none=True)
            model.to("cpu")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


# ---- predicted


def _predict(model: nn.Module, case: Case, clock: Clock, device: torch.device) -> list[Way]:
    kind: Literal["cuda", "cpu"] = "cuda" if device.type == "cuda" else "cpu"
    shape = (case.batch, BANDS, case.side_px, case.side_px)
    loss = loss_on_shapes(LOSS) if case.training else None
    cost = StepCost(trace_step(model, shape, loss=loss, optimizer=ADAMW, bf16=case.bf16, device=kind))
    facts, op_s = cost.facts, partial(op_seconds, rates=clock.catalogue, tf32=clock.tf32)
    if not case.training:
        return [Way("predict", None, _parts(cost, NOTHING), facts.ops)]
    recipes = choose_recipes(cost, find_recipes(cost, op_s), 0)
    again = tuple(op for recipe in recipes for op in recipe.ops)
    keys = tuple(key for recipe in recipes for key in recipe.keys)
    ways = [
        Way("plain", None, _parts(cost, NOTHING), facts.ops),
        Way("recompute", Recompute(saved=keys), _parts(cost, changed_by(recipes)), facts.ops + again),
    ]
    sets = list_blocks(cost, op_s)
    if sets:
        blocks = min(sets, key=lambda each: cost.peak_bytes(each.changed))
        inside = tuple(f"{path}." for path in blocks.paths)
        again = tuple(op for op in facts.ops[: cost.turn] if f"{op.module}.".startswith(inside))
        parts = _parts(cost, blocks.changed)
        ways.append(Way("blocks", Recompute(blocks=blocks.paths), parts, facts.ops + again))
    return ways


def _parts(cost: StepCost, changed: Changed) -> Parts:
    live_bytes = cost.live_bytes(changed)
    at = max(range(len(live_bytes)), key=live_bytes.__getitem__)
    resident_bytes = sum(each.size_bytes for each in cost.facts.storages if each.born < 0)
    turn_bytes = live_bytes[cost.turn - 1] if cost.facts.training else resident_bytes
    return Parts(live_bytes[at], resident_bytes, turn_bytes, f"at {cost.facts.ops[at].kind}")


# ---- side by side


def _compare(model: nn.Module, case: Case, way: Way, clock: Clock, device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    host_s = _host_seconds(model, case, way, clock, device) if cuda else 0.0
    before_bytes = torch.cuda.memory_allocated(device) - _model_bytes(model) if cuda else 0
    ready = make_ready(model, case, way.recompute, device)
    if not case.training:
        ready.run()
    measured = peak_on_cuda(ready, before_bytes, device) if cuda else peak_on_cpu(ready)
    ready.at_turn = lambda: None
    step_s = step_seconds(ready.run, device)
    by_rates = clock.seconds(way.ops, clock.measured)
    by_catalogue = clock.seconds(way.ops, clock.catalogue)
    key = (case.network.name, case.bf16, case.training)
    profiled_s = None
    if key in clock.factors and clock.factors[key]["side_px"] != case.side_px:
        factors = clock.factors[key]
        profiled_s = max(host_s, sum(factors[name] * seconds for name, seconds in by_catalogue.items()))
    elif key not in clock.factors and way.name in ("plain", "predict"):
        real = profiled_seconds(ready.run, device)
        clock.factors[key] = {name: real[name] / max(by_catalogue[name], 1e-9) for name in CLASSES_OF_OPS}
        clock.factors[key]["side_px"] = case.side_px
    times = {"catalogue": sum(by_catalogue.values()), "rates": sum(by_rates.values()), "profiled": profiled_s}
    return {
        **_name(case, way.name),
        "predicted_mib": round(way.predicted.peak_bytes / MIB, 2),
        "measured_mib": round(measured.peak_bytes / MIB, 2),
        "error": round(way.predicted.peak_bytes / measured.peak_bytes - 1, 5),
        "measured_ms": round(step_s * 1e3, 3),
        "predicted_ms": {
            name: None if each is None else round(each * 1e3, 3) for name, each in times.items()
        },
        "time_error": {
            name: None if each is None else round(each / step_s - 1, 4) for name, each in times.items()
        },
        "host_ms": round(host_s * 1e3, 3),
        "parts_predicted_mib": way.predicted.as_mib(),
        "parts_measured_mib": measured.as_mib(),
        "peak_predicted": way.predicted.note,
        "peak_measured": measured.note,
        "told": ready.told[:3],  # what of the plan could not be done
    }


def _host_seconds(model: nn.Module, case: Case, way: Way, clock: Clock, device: torch.device) -> float:
    """Return the time of a step so small that the GPU waits for the host: no step of this way is faster."""
    key = (case.network.name, case.bf16, way.name)
    if key not in clock.host_s:
        tiny = Case(case.network, TINY_PX, 2, case.bf16, case.training)
        clock.host_s[key] = step_seconds(make_ready(model, tiny, way.recompute, device).run, device)
        gc.collect()  # the step and its optimizer know each other
    return clock.host_s[key]


def _model_bytes(model: nn.Module) -> int:
    tensors = (*model.parameters(), *model.buffers())
    return sum(-(-each.nbytes // BLOCK_BYTES) * BLOCK_BYTES for each in tensors)


# ---- told


def _name(case: Case, way: str) -> dict[str, Any]:
    precision = "bf16" if case.bf16 else "fp32"
    sizes = {"side_px": case.side_px, "batch": case.batch}
    return {"model": case.network.name, **sizes, "precision": precision, "way": way}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _line(row: dict[str, Any]) -> str:
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


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


def _summary(rows: Sequence[dict[str, Any]]) -> list[str]:
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


def _place(device: str) -> Path:
    words = "".join(each if each.isalnum() else "-" for each in device.lower().removeprefix("nvidia")).strip(
        "-"
    )
    return Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-{words}-plan-error"


def _write(place: Path, rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    tree = {"about": about, "rows": list(rows)}
    place.with_name(f"{place.name}.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    head = "| model | px | batch | precision | way | predicted MiB | measured MiB | error |"
    head += " measured ms | catalogue | rates | profiled |"
    lines = ["# Predicted against measured memory and time", "", *_summary(rows), "", head, "|" + "---|" * 12]
    for row in rows:
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


if __name__ == "__main__":
    main()
