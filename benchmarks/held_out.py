"""Networks that nobody looked at while the planner was made: peaks as planned beside peaks as counted, on a CPU.

    OMP_NUM_THREADS=1 python benchmarks/held_out.py [--networks swin smp ...] [--shares 1 0.5 0.33] [--out result.json]

Each network runs a step of a small batch: as it is, and inside `outsize.within` at shares of what the plain step takes
beyond weights. Counted is every storage from where it is made to where it is let go of, as a GPU's allocator rounds it.
Loss and gradients are compared with those of the plain step.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from any_networks import cross_entropy, smp_network, timm_network
from torch import Tensor, nn

import outsize
from outsize.errors import OutsizeError
from outsize.measure.memory import LiveBytes
from outsize.plan.cost import StepCost
from outsize.plan.limits import USABLE
from outsize.plan.step import BLOCK_BYTES
from outsize.planning.own_step import facts_of, own_step

SHARES = (1.0, 0.5, 0.33)
_SEED = 5


def _torchvision(name: str, **options: Any) -> nn.Module:
    import torchvision.models as zoo  # type: ignore[import-untyped]

    model: nn.Module = zoo.get_model(name, weights=None, **options)
    return model


Made = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Made, tuple[int, ...]]] = {
    "timm convnextv2_atto": (lambda: timm_network("convnextv2_atto"), (16, 3, 128, 128)),
    "timm mobilenetv3_small_100": (lambda: timm_network("mobilenetv3_small_100"), (16, 3, 160, 160)),
    "timm coatnet_nano_rw_224": (lambda: timm_network("coatnet_nano_rw_224"), (2, 3, 224, 224)),
    "timm swinv2_tiny_window8_256": (lambda: timm_network("swinv2_tiny_window8_256"), (2, 3, 256, 256)),
    "timm deit3_small_patch16_224": (
        lambda: timm_network("deit3_small_patch16_224", img_size=128),
        (16, 3, 128, 128),
    ),
    "timm maxvit_rmlp_pico_rw_256": (lambda: timm_network("maxvit_rmlp_pico_rw_256"), (2, 3, 256, 256)),
    "timm mobilevit_xxs": (lambda: timm_network("mobilevit_xxs"), (4, 3, 128, 128)),
    "timm poolformer_s12": (lambda: timm_network("poolformer_s12"), (4, 3, 128, 128)),
    "timm xcit_nano_12_p16_224": (lambda: timm_network("xcit_nano_12_p16_224"), (8, 3, 224, 224)),
    "timm regnety_002": (lambda: timm_network("regnety_002"), (8, 3, 160, 160)),
    "timm densenet121": (lambda: timm_network("densenet121"), (2, 3, 96, 96)),
    "smp FPN/mobilenet_v2": (lambda: smp_network("FPN", "mobilenet_v2"), (2, 3, 128, 128)),
    "smp UnetPlusPlus/resnet18": (lambda: smp_network("UnetPlusPlus", "resnet18"), (2, 3, 96, 96)),
    "smp DeepLabV3Plus/efficientnet-b0": (
        lambda: smp_network("DeepLabV3Plus", "efficientnet-b0"),
        (2, 3, 128, 128),
    ),
    "smp PAN/tu-resnest14d": (lambda: smp_network("PAN", "tu-resnest14d"), (2, 3, 128, 128)),
    "torchvision lraspp_mobilenet_v3_large": (
        lambda: _torchvision("lraspp_mobilenet_v3_large", weights_backbone=None, num_classes=8),
        (2, 3, 128, 128),
    ),
    "torchvision swin_v2_t": (lambda: _torchvision("swin_v2_t"), (2, 3, 128, 128)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    print("| network | budget | predicted | counted | off | loss, gradients | plan |")
    print("|---|---|---|---|---|---|---|")
    for name, (make, shape) in NETWORKS.items():
        if any(part.lower() in name.lower() for part in options.networks):
            for row in rows_of(name, make, shape, options.shares):
                rows.append(row)
                print(as_line(row), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


def rows_of(name: str, make: Made, shape: tuple[int, ...], shares: list[float]) -> list[dict[str, Any]]:
    """Return a row for each share."""
    torch.manual_seed(0)
    model, images = make().train(), torch.randn(shape)
    cost = StepCost(facts_of(own_step(model, images, cross_entropy, None, bf16=False))[0])
    wanted = stepped(copy.deepcopy(model), images)
    rows = []
    for share in shares:
        row: dict[str, Any] = {"network": name, "share": share}
        rows.append(row)
        budget_bytes = cost.lasting_bytes + share * (cost.peak_bytes() - cost.lasting_bytes)
        own = copy.deepcopy(model)
        begin_s = time.process_time()
        try:
            # one byte more than the plain step is enough for it
            limit_bytes = int(budget_bytes / USABLE["cpu"]) + 1
            fit = outsize.within(own, images, limit_bytes, loss=cross_entropy, optimizer=None)
        except OutsizeError as error:
            row["failed"] = str(error)
            continue
        row["planning_s"] = round(time.process_time() - begin_s, 1)
        with fit, LiveBytes(BLOCK_BYTES) as live:
            found = stepped(own, images)
        row["predicted_bytes"] = fit.plan.peak_bytes
        row["counted_bytes"] = live.peak_bytes + cost.lasting_bytes
        row["equal"] = all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
        row["apart"] = max(apart(one, other) for one, other in zip(wanted, found, strict=True))
        row["plan"] = fit.plan.why[-1]
    return rows


def stepped(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Run a step and return its loss, gradients and buffers."""
    torch.manual_seed(_SEED)
    loss = cross_entropy(model, images)
    loss.backward()
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    return [loss.detach(), *grads, *model.buffers()]


def apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, as a share of the largest number."""
    most = float(one.abs().max()) if one.numel() else 0.0
    return float((one - other).abs().max()) / max(most, 1e-30) if one.numel() else 0.0


def as_line(row: dict[str, Any]) -> str:
    """Lay out a row of the table."""
    head = f"| {row['network']} | {row['share']:.0%} |"
    if "failed" in row:
        return f"{head} {row['failed']} | | | | |"
    predicted, counted = row["predicted_bytes"] / 2**20, row["counted_bytes"] / 2**20
    equal = "the same bits" if row["equal"] else f"{row['apart']:.1e} apart"
    off = predicted / counted - 1
    return f"{head} {predicted:.1f} MiB | {counted:.1f} MiB | {off:+.1%} | {equal} | {row['plan']} |"


if __name__ == "__main__":
    main()
