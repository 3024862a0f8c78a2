"""The plain script that a run is held against: smp Unet/ResNet-18, the same split, the same number of steps.

python benchmarks/baseline_smp.py RUN/split.json --classes 5 --steps 1500 --batch 16 --tile 256 --lr 1e-3
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import rasterio
import segmentation_models_pytorch as smp
import torch
import torch.nn.functional as F


def load(entries: list[dict]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Read each image whole and put label 255 outside the areas of its split."""
    scenes = []
    for entry in entries:
        with rasterio.open(entry["image"]) as image, rasterio.open(entry["labels"]) as labels:
            pixels, truth = image.read().astype(np.float32), labels.read(1)
        inside = np.zeros(truth.shape, bool) if entry["areas"] else np.ones(truth.shape, bool)
        for row, col, height, width in entry["areas"]:
            inside[row : row + height, col : col + width] = True
        scenes.append((pixels, np.where(inside, truth, 255)))
    return scenes


def draw(
    scenes: list, weights: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cut a random window that has labels, padded where the image is smaller, flipped and turned."""
    while True:
        pixels, truth = scenes[rng.choice(len(scenes), p=weights)]
        row, col = (int(rng.integers(max(1, length - size + 1))) for length in truth.shape)
        x, y = pixels[:, row : row + size, col : col + size], truth[row : row + size, col : col + size]
        if (y != 255).any():
            break
    pad = (size - y.shape[0], size - y.shape[1])
    x, y = (
        np.pad(x, ((0, 0), (0, pad[0]), (0, pad[1]))),
        np.pad(y, ((0, pad[0]), (0, pad[1])), constant_values=255),
    )
    quarters = int(rng.integers(4))
    x, y = np.rot90(x, quarters, (1, 2)), np.rot90(y, quarters)
    return (x[..., ::-1].copy(), y[:, ::-1].copy()) if rng.random() < 0.5 else (x.copy(), y.copy())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("split")
    for name, default in (("classes", 5), ("steps", 1500), ("batch", 16), ("tile", 256), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    splits = json.loads(Path(args.split).read_text())
    train, test = load(splits["train"]), load(splits["test"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mean = np.mean([x.mean((1, 2)) for x, _ in train], 0)[:, None, None]
    std = np.mean([x.std((1, 2)) for x, _ in train], 0)[:, None, None]
    train, test = ([((x - mean) / std, y) for x, y in part] for part in (train, test))
    weights = np.array([(y != 255).sum() for _, y in train], float)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    model = smp.Unet("resnet18", encoder_weights=None, in_channels=len(mean), classes=args.classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    start = time.perf_counter()
    for _ in range(args.steps):
        samples = [draw(train, weights / weights.sum(), args.tile, rng) for _ in range(args.batch)]
        x = torch.from_numpy(np.stack([s[0] for s in samples])).float().to(device)
        y = torch.from_numpy(np.stack([s[1] for s in samples])).long().to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.cross_entropy(model(x).float(), y, ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    seconds = time.perf_counter() - start
    model.eval()
    counts = np.zeros((args.classes, args.classes), np.int64)
    for x, y in test:
        image = torch.from_numpy(x)[None].float().to(device)
        image = F.pad(image, (0, -x.shape[2] % 32, 0, -x.shape[1] % 32))
        with torch.inference_mode():
            found = model(image)[0, :, : y.shape[0], : y.shape[1]].argmax(0).cpu().numpy()
        known = y < args.classes
        counts += np.bincount(y[known] * args.classes + found[known], minlength=args.classes**2).reshape(
            counts.shape
        )
    iou = np.diag(counts) / (counts.sum(0) + counts.sum(1) - np.diag(counts))
    print(
        json.dumps(
            {"seed": args.seed, "seconds": seconds, "mean_iou": float(np.nanmean(iou)), "iou": iou.tolist()}
        )
    )


if __name__ == "__main__":
    main()
