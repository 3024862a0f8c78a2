"""How fast objects are found, against plain torchvision in float32 on the same weights; and whether they are the same.

    python benchmarks/objects_speed.py RUN [NUCLEI] [--side 1024] [--batch 4] [--rounds 9] [--out result.json]

Both begin with the same normalised pictures on the device, cut from the run's test pictures (mirrored where those are
smaller), which lie in NUCLEI/images if they no longer lie where the run found them. Torchvision ends with masks as
large as the picture on the device, ours with local windows on the host. Both have the same anchors, and the same limits
of proposals and detections. Ours runs in bfloat16, where the GPU has it, and in float32.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import shapely
import torch
import torchvision
from torchvision.models.detection import MaskRCNN as Plain
from torchvision.models.detection.rpn import AnchorGenerator

from outsize.data.object import Object, iou, make_object
from outsize.data.recall import recall_images
from outsize.data.scenes import open_image
from outsize.infer.ready import load_ready
from outsize.job import load_job
from outsize.raster.reading import SceneReader
from outsize.runs import RunFolder
from outsize.tasks import task_of
from outsize.tasks.instances.scene import finder_of
from outsize.tiles.window import Window

MOST_S = 30  # for all rounds: no further one begins afterwards
SURE = 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("nuclei", type=Path, nargs="?", default=None)
    for name, default in (("side", 1024), ("batch", 4), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    run = RunFolder(options.run)
    job = load_job(run.job)
    infos = [open_image(path, job.data) for path in images_of(run, options.split, options.nuclei)]
    ready = load_ready(
        run.best,
        job.limits,
        infos,
        task_of(job.task).cutting,
        device_name=options.device,
        precision=job.train.precision,
    )
    device = ready.settings.device
    images, valid = pictures(infos, options.side, options.batch)
    images, valid = images.to(device), valid.to(device)
    usual = finder_of(ready, SURE)
    prepare = usual.prepare(infos[0])
    inputs = prepare(images, valid).float()
    plain = as_torchvision(ready.model, options.side).to(device).eval()

    @torch.inference_mode()
    def theirs() -> list[dict[str, torch.Tensor]]:
        return plain(list(inputs))

    works = {"torchvision": theirs}
    for bf16 in sorted({ready.settings.bf16, False}):
        finder = replace(usual, settings=replace(usual.settings, bf16=bf16))
        works["bf16" if bf16 else "fp32"] = lambda finder=finder: finder.detect(images, valid, prepare)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for name, work in works.items():  # the first time is for choosing kernels
        print(f"{name}: the first time in {timed(work, device):.2f} s", flush=True)
    start_s = time.perf_counter()
    for _ in range(options.rounds):  # in turn, so that a machine that changes its pace does so for all
        for name, work in works.items():
            seconds[name].append(timed(work, device))
        if time.perf_counter() - start_s > MOST_S:
            break
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    true = sure_objects(theirs())
    result = {
        "side_px": options.side,
        "batch": options.batch,
        "num_rounds": len(seconds["torchvision"]),
        "ms": {name: round(1e3 * each, 2) for name, each in medians.items()},
        "ours": {
            name: {"faster": round(medians["torchvision"] / medians[name], 3), **sameness(true, work())}
            for name, work in works.items()
            if name != "torchvision"
        },
        "tf32": {"cudnn": torch.backends.cudnn.allow_tf32, "matmul": torch.backends.cuda.matmul.allow_tf32},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def images_of(run: RunFolder, split: str, folder: Path | None) -> list[Path]:
    """Return the pictures of a split, where they were or below a folder."""
    paths = recall_images(run.split, split)
    return paths if folder is None else [folder / "images" / path.name for path in paths]


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


def sure_objects(answers: list[dict[str, torch.Tensor]]) -> list[list[Object]]:
    """Return what torchvision is sure of, of each picture; only the box of a mask comes to the host."""
    found = []
    for answer in answers:
        own = []
        sure = answer["scores"] >= SURE
        masks = answer["masks"][sure, 0] > 0.5
        height, width = masks.shape[-2:]
        for label, score, box, mask in zip(
            *(answer[name][sure].tolist() for name in ("labels", "scores", "boxes")), masks, strict=True
        ):
            left, top, right, bottom = (round(each) for each in box)
            place = Window(top - 2, left - 2, bottom - top + 4, right - left + 4)
            place = place.intersect(Window(0, 0, height, width))
            own.append(make_object(label - 1, place, mask[place.slices].cpu().numpy(), score=score))
        found.append([each for each in own if each is not None])
    return found


def sameness(true: list[list[Object]], ours: list[tuple[Object, ...]]) -> dict[str, float]:
    """Match torchvision's sure objects with ours."""
    num, matched, close, worst = 0, 0, 0, 0.0
    for some, others in zip(true, ours, strict=True):
        num += len(some)
        if not some or not others:
            continue
        here, there = (
            shapely.box(*np.array([each.box for each in each_ones]).T) for each_ones in (some, others)
        )
        best: dict[int, tuple[float, float]] = {}
        pairs = shapely.STRtree(there).query(here, predicate="intersects")
        for one, other in zip(*(each.tolist() for each in pairs), strict=True):
            if some[one].class_id == others[other].class_id:
                share = iou(some[one], others[other])
                best[one] = max(best.get(one, (0.0, 0.0)), (share, others[other].score))
        for one, (share, score) in best.items():
            if share >= 0.9:
                difference = abs(score - some[one].score)
                matched += 1
                close += difference <= 0.02
                worst = max(worst, difference)
    return {
        "num_sure": num,
        "matched_at_iou_0.9": round(matched / num, 4) if num else 1.0,
        "scores_within_0.02": round(close / matched, 4) if matched else 1.0,
        "largest_difference_of_scores": round(worst, 4),
    }


if __name__ == "__main__":
    main()
