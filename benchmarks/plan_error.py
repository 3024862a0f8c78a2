"""Predicted against measured: the peak memory and the time of training steps and predictions, one row for each.

    python benchmarks/plan_error.py [--device cuda] [--quick] [--out FOLDER/NAME] [--seconds 600] [--cap-gib 126]
    python benchmarks/plan_error.py --only eager --join FILE.json    # in parts, with the rows of an earlier run
    python benchmarks/plan_error.py --only compiled --networks unet --precisions bf16    # in smaller parts
    python benchmarks/plan_error.py --only halved --at-once 8    # compiled, with half of what it would keep
    python benchmarks/plan_error.py --foretell FILE    # anywhere: predictions need no GPU
    python benchmarks/plan_error.py --foretold FILE    # on the GPU: measures what was predicted

Four networks, three sizes, float32 (TF32 in convolutions, as torch has it) and bfloat16; ways: a plain training step,
one that recomputes tensors, one that runs blocks again, one that moves tensors to host memory as well (on a GPU), and
prediction. Sizes are such that the GPU is busy: a step of a small window takes as long as the host needs to call its
operations, which differs by half from one minute to the next on a shared machine. The prediction comes from shapes
alone (measure/tracing/step.py, plan/memory/cost.py); what is measured is the step that strategies/compose.py makes of
the plan.

Measured memory is torch.cuda.max_memory_allocated less what the process held before. On the CPU, with tiny networks,
it is the sum of live storages: that shows whether the model of a step is right, and nothing about a GPU's libraries.
Times: "catalogue" from the data sheet, "rates" from this machine's measured rates, "profiled" from the catalogue taught
by real steps of the same network, precision and purpose at another size (measure/learning/look.py), the nearest
one; rows of a network that was run at one size only have no such prediction. Compiled steps are predicted by half a
batch of the first one, run plainly and compiled: the share of the plain step's time on the device, which the other
columns tell, and the host's time to call it. A measured time is the lower quartile of at least six steps that follow
one another, recorded as one CUDA graph as a training has them, but for prediction and compiled steps; memory is that of
the same step called kernel by kernel.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import pickle
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from plan_error_compiled import OfOneStep, fill_cache, smaller
from plan_error_measured import (
    BANDS,
    CLASSES,
    MIB,
    NUM_FEW,
    NUM_TIMED,
    Case,
    Network,
    Ready,
    make_ready,
    peak_on_cpu,
    peak_on_cuda,
    step_seconds,
)
from plan_error_predicted import Clocks, Way, facts_of, predict
from plan_error_table import is_same, line, place_for, rows_of, summary, write
from torch import nn

from outsize.errors import PlanError, first_line
from outsize.measure.learning import look_at, taught_by
from outsize.measure.machine.bandwidth import measure, recall_or_measure
from outsize.models import build_model
from outsize.plan.machines import find_machine
from outsize.plan.step import BLOCK_BYTES, StepFacts
from outsize.plan.times import Clock, Learnt
from outsize.strategies.cudagraph.capture import NUM_PLAIN


@dataclass(frozen=True)
class Held:
    """A row that waits for a step of another size to be learnt from."""

    row: dict[str, Any]
    case: Case
    way: Way | None = None  # None: it failed


NETWORKS = (
    Network("wider_resnet38"),
    Network("unet", {"width": 64}),
    # Light for their number of operations: so many times the batch, or the host that calls them would be measured.
    Network("smp:DeepLabV3Plus/resnet101", times=4),
    Network("smp:DeepLabV3Plus/resnet18", times=4),
)
KINDS = ("eager", "compiled", "halved")
TINY = (Network("wider_resnet38", {"width": 4}), Network("unet", {"width": 8, "levels": 4}))
TINY_MORE = (*TINY, Network("smp:DeepLabV3Plus/resnet18"))


def cases(
    device: str,
    *,
    quick: bool,
    names: Sequence[str] | None = None,
    precisions: Sequence[str] = ("bf16", "fp32"),
) -> Iterator[Case]:
    """Yield what is compared: sizes of one network in one precision follow each other, for hosts change with time."""
    networks: tuple[Network, ...] = NETWORKS
    trained, predicted = [(800, 4), (1024, 4), (512, 8)], [2048, 3072, 1024]
    if device == "cpu":
        networks = TINY if quick else TINY_MORE
        trained, predicted = [(64, 2), (96, 2)], [128, 160]
    for place, network in enumerate(networks[:2] if quick else networks):
        if names is not None and network.name not in names:
            continue
        for bf16 in (True, False):
            if ("bf16" if bf16 else "fp32") not in precisions:
                continue
            # quick: one size, and a second one of the second network in one precision
            num_sizes = (2 if place and not bf16 else 1) if quick else len(trained)
            for side_px, batch in trained[:num_sizes]:
                yield Case(network, side_px, network.times * batch, bf16, training=True)
            for side_px in predicted[:num_sizes]:
                yield Case(network, side_px, network.times, bf16, training=False)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    # read when a profile ends: else the profiler would go on slowing every launch of the steps that follow
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    options = _options(arguments)
    device = torch.device(options.device)
    if options.foretell is not None:
        _foretell(options.foretell, quick=options.quick)
        return []
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
        torch.backends.cudnn.benchmark = False
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        options.cap_gib = options.cap_gib or round(0.9 * total_bytes / 2**30, 1)
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap_gib * 2**30 / total_bytes), device)
    else:
        torch.set_num_threads(1)  # tiny networks: on a busy machine a second thread costs more than it brings
    clocks, about = _clocks(device)
    about |= {"command": "python benchmarks/plan_error.py " + " ".join(arguments or sys.argv[1:])}
    about |= {"cap_gib": options.cap_gib}
    place = options.out or place_for(about["device"])
    rows: list[dict[str, Any]] = [row for each in options.join for row in rows_of(each)]
    start_s = time.perf_counter()
    end_s = start_s + options.seconds
    models: dict[str, nn.Module] = {}
    for kind in _kinds(options, device):
        foretell = _foreteller(kind, options, clocks)
        listed = cases(
            device.type, quick=options.quick, names=options.networks, precisions=options.precisions
        )
        for (network, *_), group in itertools.groupby(
            listed, lambda each: (each.network, each.bf16, each.training)
        ):
            if network.name not in models:
                models[network.name] = build(network)
            chosen = [each for each in group if each.training or kind == "eager"]
            model = models[network.name]
            for row in _rows(model, chosen, foretell, clocks, device, end_s):
                rows = [each for each in rows if not is_same(each, row)] + [row]
                print(line(row), flush=True)
                # after each, so that a run that is cut short leaves what it has seen
                write(place, rows, {**about, "took_s": round(time.perf_counter() - start_s)})
            model.to("cpu")
    print("\n".join(summary(rows)))
    return rows


def _foreteller(kind: str, options: argparse.Namespace, clocks: Clocks) -> Callable[..., list[Way]]:
    """Return what predicts the ways of a case."""
    foretold = None if options.foretold is None else pickle.loads(options.foretold.read_bytes())  # our own
    if kind == "eager":
        if foretold is None:
            return partial(predict, clock=clocks.catalogue)
        return partial(_recalled, foretold["ways"])
    if options.at_once:
        networks = options.networks or [each.name for each in NETWORKS]
        others = [] if foretold is None else ["--foretold", str(options.foretold)]
        fill_cache(
            kind,
            networks,
            options.precisions,
            at_once=options.at_once,
            seconds=options.seconds / 2,
            others=[*others, "--cap-gib", str(options.cap_gib)],
        )
    followed = facts_of if foretold is None else partial(_recalled, foretold["facts"])
    return OfOneStep(kind, clocks.catalogue, followed).predict


def _kinds(options: argparse.Namespace, device: torch.device) -> list[str]:
    """Return which steps are run."""
    if options.only is not None:
        return [options.only]
    return list(KINDS) if device.type == "cuda" and not options.quick else ["eager"]


def _foretell(place: Path, *, quick: bool) -> None:
    """Predict all cases for the GPU of the catalogue, and write them down for a machine that has one."""
    clock = Clock(find_machine("h200").rates, tf32=True, overlaps=True)
    ways: dict[str, list[Way]] = {}
    facts: dict[str, StepFacts] = {}
    models: dict[str, nn.Module] = {}
    device = torch.device("cuda")
    for case in cases("cuda", quick=quick):
        model = models.setdefault(case.network.name, build(case.network))
        start_s = time.perf_counter()
        ways[str(case)] = predict(model, case, clock=clock, device=device)
        for each in (case, smaller(case)) if case.training else ():
            facts[str(each)] = facts_of(model, each, device=device)
        print(f"{_name(case, 'all')} in {time.perf_counter() - start_s:.1f} s", flush=True)
    place.write_bytes(pickle.dumps({"ways": ways, "facts": facts}))


def _recalled(foretold: dict[str, Any], _: nn.Module, case: Case, **__: Any) -> Any:
    return foretold[str(case)]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=KINDS, help="compiled steps take a minute or two each")
    parser.add_argument("--networks", nargs="+", default=None, choices=[each.name for each in NETWORKS])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"], choices=("bf16", "fp32"))
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="rows of earlier runs, as JSON")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time for all rows")
    parser.add_argument("--at-once", type=int, default=0, help="processes that compile beforehand, for speed")
    parser.add_argument("--cap-gib", type=float, default=None, help="of the process; else 0.9 of the GPU")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--foretell", type=Path, default=None, help="predict only, and write it here")
    parser.add_argument("--foretold", type=Path, default=None, help="measure what was predicted there")
    options = parser.parse_args(arguments)
    if options.only in KINDS[1:] and options.device == "cpu":
        parser.error("compiled steps need a GPU: to count memory on a CPU each operation has to be seen")
    return options


def _clocks(device: torch.device) -> tuple[Clocks, dict[str, Any]]:
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
    about |= {"measured": seen.rates().as_dict()}
    tf32, overlaps = spec.rates.tf32_flops_per_s is not None, device.type == "cuda"
    return Clocks(*(Clock(each, tf32=tf32, overlaps=overlaps) for each in (spec.rates, seen.rates()))), about


def build(network: Network) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(network.name, num_classes=CLASSES, in_channels=BANDS, **network.options)
    return model.to(memory_format=torch.channels_last)


def _rows(
    model: nn.Module,
    group: Iterable[Case],
    foretell: Callable[..., list[Way]],
    clocks: Clocks,
    device: torch.device,
    end_s: float,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one network in one precision, and all once more when other sizes have been learnt from."""
    learnt: list[Learnt] = []
    held: list[Held] = []
    for case in group:
        if time.perf_counter() > end_s:
            held.append(Held({**_name(case, "all"), "failed": "not reached in the time given"}, case))
            continue
        for each in _measured(model, case, foretell, clocks, device, learnt):
            yield each.row
            held.append(each)
    yield from (_taught(each, learnt, clocks) for each in held)


def _measured(
    model: nn.Module,
    case: Case,
    foretell: Callable[..., list[Way]],
    clocks: Clocks,
    device: torch.device,
    learnt: list[Learnt],
) -> Iterator[Held]:
    ways: list[Way] = []
    model.to("cpu")  # where steps are followed on paper
    try:
        ways = foretell(model, case, device=device)
    except Exception as error:  # noqa: BLE001 - a row that fails says so, and the others follow
        yield Held({**_name(case, "all"), "failed": f"prediction: {first_line(error)}"}, case)
    for way in ways:
        try:
            model.to(device)
            yield Held(_compare(model, case, way, clocks, device, learnt), case, way)
        except Exception as error:  # noqa: BLE001 - as above
            yield Held({**_name(case, way.name), "failed": first_line(error)}, case)
        finally:
            model.zero_grad(set_to_none=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _taught(held: Held, learnt: Sequence[Learnt], clocks: Clocks) -> dict[str, Any]:
    """Add what the nearest step of another size would have foretold."""
    others = [each for each in learnt if each.side_px != held.case.side_px]
    if held.way is not None and held.way.learnt is not None:
        nearest = held.way.learnt
    elif held.way is None or not others:
        return held.row
    else:
        nearest = min(others, key=lambda each: abs(math.log(each.side_px / held.case.side_px)))
    seconds = held.way.as_seen(nearest).seconds(clocks.of(held.case)["catalogue"].taught(nearest))
    row = held.row
    row["predicted_ms"]["profiled"] = round(seconds * 1e3, 3)
    row["time_error"]["profiled"] = round(seconds * 1e3 / row["measured_ms"] - 1, 4)
    return {**row, "profiled_px": nearest.side_px}


# ---- side by side


def _timed(ready: Ready) -> Callable[[], object]:
    """Return what is timed: the recorded step, once it is."""
    if ready.run_recorded is None:
        return ready.run
    for _ in range(NUM_PLAIN + 1):
        ready.run_recorded()
    return ready.run_recorded


def _compare(
    model: nn.Module, case: Case, way: Way, clocks: Clocks, device: torch.device, learnt: list[Learnt]
) -> dict[str, Any]:
    cuda = device.type == "cuda"
    as_it_is = way.name in ("plain", "predict")
    before_bytes = torch.cuda.memory_allocated(device) - _model_bytes(model) if cuda else 0
    ready = make_ready(model, case, way.settings, device)
    if not case.training:
        ready.run()
    measured = peak_on_cuda(ready, before_bytes, device, look_inside=as_it_is) if cuda else peak_on_cpu(ready)
    ready.at_turn = lambda: None
    step_s = step_seconds(_timed(ready), device, NUM_TIMED if as_it_is else NUM_FEW)
    ready.run_recorded = None  # a recording keeps its memory
    gc.collect()
    predicted_s = {name: way.seconds(clock) for name, clock in clocks.of(case).items()}
    row = {
        **_name(case, way.name),
        "predicted_mib": round(way.predicted.peak_bytes / MIB, 2),
        "measured_mib": round(measured.peak_bytes / MIB, 2),
        "error": round(way.predicted.peak_bytes / measured.peak_bytes - 1, 5),
        "measured_ms": round(step_s * 1e3, 3),
        "predicted_ms": {
            **{name: round(each * 1e3, 3) for name, each in predicted_s.items()},
            "profiled": None,
        },
        "time_error": {
            **{name: round(each / step_s - 1, 4) for name, each in predicted_s.items()},
            "profiled": None,
        },
        "parts_predicted_mib": way.predicted.as_mib(),
        "parts_measured_mib": measured.as_mib(),
        "peak_predicted": way.predicted.note,
        "peak_measured": measured.note,
        "told": ready.told[:3],  # what of the plan could not be done
    }
    if as_it_is:
        clock = clocks.of(case)["catalogue"]
        learnt.append(
            taught_by(look_at(ready.run, device), way.ops, clock, batch=case.batch, side_px=case.side_px)
        )
        row["learnt"] = asdict(replace(learnt[-1], paces={}, workspaces={}))  # hundreds of numbers
    return row


def _model_bytes(model: nn.Module) -> int:
    tensors = (*model.parameters(), *model.buffers())
    return sum(-(-each.nbytes // BLOCK_BYTES) * BLOCK_BYTES for each in tensors)


# ---- told


def _name(case: Case, way: str) -> dict[str, Any]:
    precision = "bf16" if case.bf16 else "fp32"
    sizes = {"side_px": case.side_px, "batch": case.batch}
    return {"model": case.network.name, **sizes, "precision": precision, "way": way}


if __name__ == "__main__":
    main()
