"""How much of what gradients take on their way is hidden behind backward: a trace of one rank of several.

    python benchmarks/gradients_trace.py --out trace.json              # 2 ranks; of one GPU, if there is one, over gloo
    python benchmarks/gradients_trace.py --model erfnet --px 64 --ranks 2

A step of each rank is traced; what sums gradients, from the first bucket that leaves to the last that arrives, is laid
over what backward computes. The trace can be looked at in https://ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.models import build_model
from outsize.plan.plan import unplanned
from outsize.ranks import World, joined
from outsize.ranks.launch import launch
from outsize.strategies.compose import compose
from outsize.strategies.replicate import look_across, share_out

_CLASSES = 6
Spans = list[tuple[float, float]]


def _terms(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    answer = model(batch.images)
    labels = batch.targets.labels.long()  # type: ignore[attr-defined]
    if answer.shape[2:] != labels.shape[1:]:
        answer = nn.functional.interpolate(answer, labels.shape[1:])
    return {"entropy": nn.functional.cross_entropy(answer, labels, reduction="sum")}


def _trace(world: World, asked: argparse.Namespace, device: torch.device) -> Path:
    """Run some steps and trace the last one."""
    torch.manual_seed(0)
    model = build_model(asked.model, num_classes=_CLASSES, in_channels=3).to(device).train()
    share = share_out(world, asked.samples * world.size)
    look_across(model, share, local_norm=True)
    images = torch.randn(asked.samples, 3, asked.px, asked.px, device=device)
    labels = torch.zeros(asked.samples, asked.px, asked.px, dtype=torch.uint8, device=device)
    total = float(labels.numel() * world.size)
    batch = Batch(images, labels < _CLASSES, ClassRasters(labels), {"entropy": total})
    step = compose(model, _terms, unplanned(), bf16=False, share=share)
    for _ in range(2):
        step(batch, last=True)
        model.zero_grad(set_to_none=True)
    world.barrier()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds) as seen:
        step(batch, last=True)
    out = Path(asked.out).with_suffix(f".{world.rank}.json")
    seen.export_chrome_trace(str(out))
    return out


def hidden(path: Path) -> tuple[float, float]:
    """Return for how many milliseconds gradients were on their way, and for how many of them backward computed."""
    events = [each for each in json.loads(path.read_text())["traceEvents"] if each.get("ph") == "X"]
    sent = _joined(_spans(events, ("gloo:all_reduce", "nccl:all_reduce", "ncclDevKernel_AllReduce")))
    kernels = _spans(
        [each for each in events if each.get("cat") == "kernel" and "nccl" not in each["name"]], ("",)
    )
    computed = _joined(kernels or _spans(events, ("aten::convolution_backward",)))
    both = sum(max(0.0, min(one[1], other[1]) - max(one[0], other[0])) for one in sent for other in computed)
    return sum(end - begin for begin, end in sent) / 1e3, both / 1e3


def _spans(events: Iterable[dict[str, object]], names: Sequence[str]) -> Spans:
    found = []
    for each in events:
        if str(each["name"]).startswith(tuple(names)):
            begin = float(str(each["ts"]))
            found.append((begin, begin + float(str(each["dur"]))))
    return sorted(found)


def _joined(spans: Spans) -> Spans:
    found: Spans = []
    for begin, end in spans:
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _rank(asked: argparse.Namespace) -> None:
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    with joined() as world:
        sent_ms, both_ms = hidden(_trace(world, asked, device))
        lines = world.gather(
            f"rank {world.rank}: {sent_ms:.1f} ms on their way, {both_ms:.1f} ms beside backward"
        )
        if world.is_owner:
            print("\n".join(lines))
            print(
                f"{asked.model}, {asked.samples} x {asked.px} px on each rank, {device.type}, torch {torch.__version__}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="wider_resnet38")
    parser.add_argument("--out", default="gradients.json")
    for name, value in (("ranks", 2), ("samples", 1), ("px", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--is-rank", action="store_true")
    asked = parser.parse_args()
    if asked.is_rank:
        _rank(asked)
    else:
        sys.exit(launch([*sys.argv, "--is-rank"], asked.ranks))


if __name__ == "__main__":
    main()
