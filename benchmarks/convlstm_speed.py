"""Samples a second of the ConvLSTM, beside a textbook cell, and what recomputing through time costs.

    python benchmarks/convlstm_speed.py [--out result.json]                  # one GPU, about two minutes
    python benchmarks/convlstm_speed.py --device cpu --side 32 --width 8 --num 3 --rounds 2   # to see that it runs

Ten frames in, ten out, batch 4: forward, loss, backward and AdamW on one batch, in bf16 on a GPU. The ways take turns
in every round; times are medians over rounds, and ratios are medians of the ratios within a round.

    textbook   a cell of one convolution, split into four gates, frame by frame through all layers, eager
    eager      ours, each step launched by Python
    ours       the same as one CUDA graph, as a training on a GPU runs it
    half       ours with recomputing, planned for half of the memory that its activations take
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from outsize.card import to_device
from outsize.data.batch import Batch
from outsize.data.frames import NumberGrids
from outsize.data.statistics import BandStatistics
from outsize.measure.memory import LiveBytes
from outsize.measure.remembered import device_name
from outsize.measure.tracing import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Plan
from outsize.plan.search.mixture import mix
from outsize.strategies.compose import compose
from outsize.tasks.forecast import terms

PLAIN = Plan("train", 4, limit_bytes=1, peak_bytes=1, exact=True, why=())
PUBLISHED = 25.8  # samples a second and device (P100), of the ancestor; its sizes are not known


class TextbookCell(nn.Module):
    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(in_channels + width, 4 * width, 3, padding=1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, o, g = torch.split(self.gates(torch.cat((x, h), 1)), self.width, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Textbook(nn.Module):
    """The same network as anybody writes it down."""

    def __init__(self, num: int, width: int) -> None:
        super().__init__()
        self.num, self.width = num, width
        self.shrink = nn.Conv2d(1, width, 5, 4, padding=2)
        self.cells = nn.ModuleList(TextbookCell(width, width) for _ in range(4))
        self.enlarge = nn.ConvTranspose2d(width, width, 4, 4)
        self.head = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, frames: Tensor) -> Tensor:
        first = torch.relu(self.shrink(frames[:, :1]))
        states = [(torch.zeros_like(first), torch.zeros_like(first)) for _ in range(2)]
        for time_ in range(self.num):
            x = torch.relu(self.shrink(frames[:, time_ : time_ + 1]))
            for layer in range(2):
                states[layer] = self.cells[layer](x, states[layer])
                x = states[layer][0]
        answers = []
        for _ in range(self.num):
            x = torch.zeros_like(first)
            for layer in range(2):
                states[layer] = self.cells[2 + layer](x, states[layer])
                x = states[layer][0]
            answers.append(self.head(torch.relu(self.enlarge(x))))
        return torch.cat(answers, 1)


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    batch, ways, held = _batch(options).to(device), {}, {}
    model = build_model("convlstm", num_classes=options.num, in_channels=options.num, width=options.width)
    recompute, planned = _in_half(model, options)
    plans = {"eager": PLAIN, "half": replace(PLAIN, recompute=recompute)}
    if device.type == "cuda":
        plans |= {"ours": replace(PLAIN, graph=True), "half": replace(plans["half"], graph=True)}
    for name, plan in plans.items():
        ways[name] = _ours(model, plan, batch, device)
    ways["textbook"] = _textbook(Textbook(options.num, options.width), batch, device)
    for name, run in ways.items():
        for _ in range(4):  # a CUDA graph is captured after some plain steps
            run()
        with LiveBytes() as live:
            run()
        held[name] = int(live.peak_bytes)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, run in ways.items():
            _wait(device)
            start_s = time.perf_counter()
            run()
            _wait(device)
            seconds[name].append(time.perf_counter() - start_s)
    found = {
        "planned_bytes": planned,
        "published": PUBLISHED,
        "device": device_name(device),
        "torch": torch.__version__,
        "ways": {},
    }
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["textbook"], times, strict=True))
        median_s = statistics.median(times)
        found["ways"][name] = {
            "step_s": median_s,
            "samples_per_s": 4 / median_s,
            "times_textbook": ratio,
            "peak_bytes": held[name],
        }
        print(
            f"{name:9} {1e3 * median_s:9.2f} ms {4 / median_s:9.1f} samples/s {ratio:6.2f} times the textbook"
        )
    base = "ours" if "ours" in ways else "eager"
    cost = statistics.median(a / b for a, b in zip(seconds["half"], seconds[base], strict=True))
    print(f"half the activations: {cost - 1:+.1%} time; planned {planned}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=2, default=str) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--num", type=int, default=10, help="frames in, and as many out")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _batch(options: argparse.Namespace) -> Batch:
    generator = torch.Generator().manual_seed(0)
    shape = 4, options.num, options.side, options.side
    images, numbers = (torch.randint(0, 4000, shape, generator=generator).to(torch.int16) for _ in range(2))
    grids = NumberGrids(numbers, ("",) * 4)
    valid = torch.ones(4, options.side, options.side, dtype=torch.bool)
    return Batch(images, valid, grids, terms.count_terms("rain", grids))


def _terms(options_num: int) -> object:
    return terms.make_loss_terms("rain", BandStatistics((500.0,) * options_num, (800.0,) * options_num))


def _in_half(model: nn.Module, options: argparse.Namespace) -> tuple[object, dict[str, int]]:
    """Plan to recompute so that activations take half of what they do, by bytes moved where times are not known."""
    shape = 4, options.num, options.side, options.side
    facts = trace_step(model, shape, loss=terms.loss_on_shapes("rain"), device="cpu")
    cost = StepCost(facts)
    lasting = sum(each.size_bytes for each in facts.storages if each.born < 0)
    gradients = sum(each.nbytes for each in model.parameters())
    plain = cost.peak_bytes() - lasting

    def op_s(op: object) -> float:
        return op.moved_bytes / 1e12  # type: ignore[attr-defined]

    budget = lasting + gradients + (plain - gradients) // 2
    found = mix(cost, find_recipes(cost, op_s), op_s, None, budget, least_bytes=1 << 16)
    return found.as_recompute(), {"plain": plain, "half": found.peak_bytes - lasting}


def _ours(model: nn.Module, plan: Plan, batch: Batch, device: torch.device) -> Callable[[], None]:
    own = to_device(copy.deepcopy(model), device).train()
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3, fused=device.type == "cuda")
    step = compose(own, _terms(batch.images.shape[1]), plan, bf16=device.type == "cuda")

    def run() -> None:
        step(batch, last=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not plan.graph)

    return run


def _textbook(model: nn.Module, batch: Batch, device: torch.device) -> Callable[[], None]:
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = _terms(batch.images.shape[1])

    def run() -> None:
        (frames,) = parts.inputs(model, batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            answer = model(frames.contiguous())
        sums = parts.sums(model, answer, batch)
        (sums["rain"] / batch.totals["rain"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
