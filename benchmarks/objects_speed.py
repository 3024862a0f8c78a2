"""How fast objects are found, against plain torchvision in float32 on the same weights; and whether they are the same.

    python benchmarks/objects_speed.py RUN [--side 1024] [--batch 4] [--rounds 15] [--out result.json]

Both begin with the same normalised pictures on the device, cut from the run's test scenes (mirrored where those are
smaller). Torchvision ends with masks as large as the picture on the device, ours with local windows on the host.
Both have the same anchors, and the same limits of proposals and detections.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
from torchvision.models.detection import MaskRCNN as Plain
from torchvision.models.detection.rpn import AnchorGenerator

from outsize.data.objects import Object, iou, make_object
from outsize.data.recall import recall_images
from outsize.data.scenes import open_image
from outsize.infer.object_scene import finder_of
from outsize.infer.ready import load_ready
from outsize.job import load_job
from outsize.raster.read import SceneReader
from outsize.runs import RunFolder
from outsize.tiles.window import Window


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    for name, default in (("side", 1024), ("batch", 4), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    run = RunFolder(options.run)
    job = load_job(run.job)
    infos = [open_image(path, job.data) for path in recall_images(run.split, "test")]
    ready = load_ready(run.best, job.limits, infos, device_name=options.device, precision=job.train.precision)
    device = ready.settings.device
    images, valid = pictures(infos, options.side, options.batch)
    images, valid = images.to(device), valid.to(device)
    finder = finder_of(ready, 0.5)
    prepare = finder.prepare(infos[0])
    inputs = prepare(images, valid).float()
    plain = as_torchvision(ready.model, options.side).to(device).eval()

    @torch.inference_mode()
    def theirs() -> list[dict[str, torch.Tensor]]:
        return plain(list(inputs))

    def ours() -> list[tuple[Object, ...]]:
        return finder.detect(images, valid, prepare)

    seconds: dict[str, list[float]] = {"torchvision": [], "outsize": []}
    for _ in range(3):
        theirs(), ours()
    for _ in range(options.rounds):  # in turn, so that a machine that changes its pace does so for both
        for name, work in (("torchvision", theirs), ("outsize", ours)):
            seconds[name].append(timed(work, device))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    result = {
        "side_px": options.side,
        "batch": options.batch,
        "bf16": ready.settings.bf16,
        "ms": {name: round(1e3 * each, 2) for name, each in medians.items()},
        "faster": round(medians["torchvision"] / medians["outsize"], 3),
        **sameness(theirs(), ours()),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def pictures(infos: list, side_px: int, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill squares with pictures beside and below each other."""
    found, at = [], 0
    for _ in range(num):
        rows, height = [], 0
        while height < side_px:
            line, width = [], 0
            while width < side_px:
                info = infos[at % len(infos)]
                at += 1
                with SceneReader(info) as reader:
                    part = reader.read(Window(0, 0, min(info.height, 512), min(info.width, 512))).pixels
                line.append(
                    np.pad(part, ((0, 0), (0, 512 - part.shape[1]), (0, 512 - part.shape[2])), "symmetric")
                )
                width += 512
            rows.append(np.concatenate(line, axis=2)[:, :, :side_px])
            height += 512
        found.append(np.concatenate(rows, axis=1)[:, :side_px])
    images = torch.from_numpy(np.stack(found))
    return images, torch.ones(num, side_px, side_px, dtype=torch.bool)


def as_torchvision(model: torch.nn.Module, side_px: int) -> Plain:
    """Return torchvision's own detector with a model's weights and limits."""
    limits = {
        "proposals": model.most_proposals(side_px, side_px),
        "detections": model.most_detections(side_px, side_px),
    }
    sizes = tuple((float(each),) for each in model.anchor_px)
    anchors = AnchorGenerator(sizes, (tuple(model.anchor_ratios),) * len(sizes))
    own = copy.deepcopy(model).cpu()
    num_bands = own.backbone.body.conv1.in_channels
    return Plain(
        own.backbone,
        min_size=side_px,
        max_size=side_px,
        image_mean=[0.0] * num_bands,
        image_std=[1.0] * num_bands,
        rpn_anchor_generator=anchors,
        rpn_head=own.rpn["head"],
        rpn_pre_nms_top_n_test=limits["proposals"],
        rpn_post_nms_top_n_test=limits["proposals"],
        box_head=own.roi_heads["box_head"],
        box_predictor=own.roi_heads["box_predictor"],
        box_score_thresh=own.score,
        box_nms_thresh=own.nms_iou,
        box_detections_per_img=limits["detections"],
        mask_head=own.roi_heads["mask_head"],
        mask_predictor=own.roi_heads["mask_predictor"],
    )


def timed(work, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_s


def sameness(theirs: list[dict[str, torch.Tensor]], ours: list[tuple[Object, ...]]) -> dict[str, float]:
    """Match torchvision's sure objects with ours."""
    num, matched, close, worst = 0, 0, 0, 0.0
    for answer, objects in zip(theirs, ours, strict=True):
        for label, score, mask in zip(answer["labels"], answer["scores"], answer["masks"], strict=True):
            if float(score) < 0.5:
                continue
            whole = (mask[0] > 0.5).cpu().numpy()
            one = make_object(int(label) - 1, Window(0, 0, *whole.shape), whole, score=float(score))
            if one is None:
                continue
            num += 1
            shares = [(iou(one, each), each) for each in objects if each.class_id == one.class_id]
            share, best = max(shares, key=lambda pair: pair[0], default=(0.0, None))
            if best is not None and share >= 0.9:
                matched += 1
                difference = abs(best.score - one.score)
                worst = max(worst, difference)
                close += difference <= 0.02
    return {
        "num_sure": num,
        "matched_at_iou_0.9": round(matched / num, 4) if num else 1.0,
        "scores_within_0.02": round(close / matched, 4) if matched else 1.0,
        "largest_difference_of_scores": round(worst, 4),
    }


if __name__ == "__main__":
    main()
