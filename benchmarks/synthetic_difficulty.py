"""Measures how hard the synthetic scenes are, for a per-pixel logistic regression and for a small U-Net."""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.data.synthetic.scenes import CLASSES, LABEL_NODATA, draw_scene
from outsize.models import build_model

NUM_CLASSES = len(CLASSES)


def read_scene(path: Path) -> tuple[Tensor, Tensor]:
    import rasterio

    with rasterio.open(path) as image, rasterio.open(path.with_name(f"{path.stem}_labels.tif")) as labels:
        return torch.from_numpy(image.read().astype(np.float32)), torch.from_numpy(
            labels.read(1).astype(np.int64)
        )


def score(predicted: Tensor, truth: Tensor) -> NDArray[np.float64]:
    """Give the IoU of each class over the pixels that have a label."""
    seen = truth != LABEL_NODATA
    pairs = torch.bincount(truth[seen] * NUM_CLASSES + predicted[seen], minlength=NUM_CLASSES**2)
    table = pairs.reshape(NUM_CLASSES, NUM_CLASSES).double().numpy()
    both = np.diag(table)
    return np.asarray(both / (table.sum(0) + table.sum(1) - both))


def fit_pixelwise(images: list[Tensor], labels: list[Tensor]) -> nn.Module:
    """Fit a logistic regression on the bands of single pixels until it no longer gets better."""
    pixels = torch.cat(
        [x.flatten(1).T[y.flatten() != LABEL_NODATA] for x, y in zip(images, labels, strict=True)]
    )
    truth = torch.cat([y.flatten()[y.flatten() != LABEL_NODATA] for y in labels])
    some = torch.randperm(len(truth), generator=torch.Generator().manual_seed(0))[:200_000]
    pixels, truth = pixels[some], truth[some]
    model = nn.Linear(pixels.shape[1], NUM_CLASSES)
    solver = torch.optim.LBFGS(model.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels), truth)
        loss.backward()
        return loss

    solver.step(closure)
    return model


def fit_unet(model: nn.Module, images: list[Tensor], labels: list[Tensor], num_steps: int) -> None:
    solver = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    plan = torch.optim.lr_scheduler.LambdaLR(
        solver, lambda step: min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * step / num_steps))
    )
    draw = np.random.default_rng(0)
    model.train()
    for _ in range(num_steps):
        picks = [_window(draw, images, labels) for _ in range(8)]
        x, y = torch.stack([p[0] for p in picks]), torch.stack([p[1] for p in picks])
        loss = nn.functional.cross_entropy(model(x), y, ignore_index=LABEL_NODATA)
        solver.zero_grad()
        loss.backward()
        solver.step()
        plan.step()


def _window(draw: np.random.Generator, images: list[Tensor], labels: list[Tensor]) -> tuple[Tensor, Tensor]:
    which, size = int(draw.integers(len(images))), 128
    top, left = (int(draw.integers(side - size + 1)) for side in labels[which].shape)
    spot = (slice(top, top + size), slice(left, left + size))
    x, y = images[which][:, *spot], labels[which][spot]
    flips = [d for d in (1, 2) if draw.random() < 0.5]
    return x.flip(flips), y.flip([d - 1 for d in flips])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--levels", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        sizes = (options.size, options.size)
        paths = [draw_scene(Path(folder), f"s{seed}", *sizes, seed, vectors=False) for seed in (1, 2, 3)]
        images, labels = map(list, zip(*map(read_scene, paths), strict=True))
    mean = torch.stack([x.mean((1, 2)) for x in images[:2]]).mean(0)
    spread = torch.stack([x.std((1, 2)) for x in images[:2]]).mean(0)
    images = [(x - mean[:, None, None]) / spread[:, None, None] for x in images]

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    line = fit_pixelwise(images[:2], labels[:2])
    with torch.no_grad():
        _report(
            "logistic regression",
            score(line(images[2].flatten(1).T).argmax(1), labels[2].flatten()),
            wall_s,
            cpu_s,
        )

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    shape = {"levels": options.levels, "width": options.width}
    net = build_model("unet", num_classes=NUM_CLASSES, in_channels=4, **shape)
    fit_unet(net, images[:2], labels[:2], options.steps)
    net.eval()
    trained = f"U-Net, {options.levels} levels, width {options.width}, {options.steps} steps"
    with torch.no_grad():
        _report(trained, score(net(images[2][None]).argmax(1)[0], labels[2]), wall_s, cpu_s)


def _report(title: str, iou: NDArray[np.float64], wall_s: float, cpu_s: float) -> None:
    spent = f"{time.perf_counter() - wall_s:.0f} s, {time.process_time() - cpu_s:.0f} s of CPU"
    each = "  ".join(f"{spec.name} {value:.3f}" for spec, value in zip(CLASSES, iou, strict=True))
    print(f"{title}: mean IoU {iou.mean():.3f} ({spent})\n    {each}", flush=True)


if __name__ == "__main__":
    main()
