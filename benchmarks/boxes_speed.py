"""How fast FastBox trains and finds, beside a plain script in float32 in turns of one run, and beside the publication.

    python benchmarks/boxes_speed.py [--batches 5 16] [--turns 5] [--steps 20] [--device cuda] [--out result.json]

Streets are drawn at 375 x 1242 px and learnt at 384 x 1248 with VGG16 from noise. Ours is what `outsize train` plans
and runs: a step on a batch that is on the device. The plain script is the same network, losses and pictures in eager
float32 with torch's default precision (convolutions may be TF32), planes one after the other, and torch.optim.Adam.
Finding goes from bytes on the device to boxes on the host, one picture at a time and in batches.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from street_ours import Ours
from torch import Tensor

from outsize.card import Card
from outsize.data.inputs import normalise
from outsize.data.opened import OpenScenes
from outsize.data.scenes import open_image
from outsize.data.statistics import BandStatistics
from outsize.data.synthetic import draw_streets
from outsize.infer.prepare import make_prepare
from outsize.infer.ready import make_ready
from outsize.job import Job, load_job
from outsize.losses import fastbox
from outsize.models import build_model
from outsize.models.fastbox import FastBox, corners
from outsize.tasks import task_of
from outsize.tasks.detect.predict import finder_of

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "kitti-fastbox-scratch.toml"
PUBLISHED = {"5": 7.93, "16": 8.28, "finding_ms": 37.89}  # images/s in training, by the batch; on one P100
TARGETS = {"training": 1.8, "finding": 2.0}  # times the plain script


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, nargs="+", default=[5, 16])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--size", type=int, nargs=2, default=[375, 1242], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--encoder", default="vgg16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_streets(folder, max(options.batches) + 2, seed=5, size=tuple(options.size), num_processes=4)
        result: dict = {"command": " ".join(sys.argv), "published": PUBLISHED, "training": {}, "finding": {}}
        result |= about(options.device)
        for batch in options.batches:
            result["training"][batch] = train(job_of(folder, options, batch), batch, options)
            print(json.dumps({f"training, {batch}": result["training"][batch]}), flush=True)
            told(result, options.out)
        for batch in (1, *options.batches):
            result["finding"][batch] = find(job_of(folder, options, 2), batch, options)
            print(json.dumps({f"finding, {batch}": result["finding"][batch]}), flush=True)
            told(result, options.out)
    print(table(result))
    reached = all(
        each["faster"] >= least for kind, least in TARGETS.items() for each in result[kind].values()
    )
    sys.exit(0 if reached else 1)


def job_of(folder: Path, options: argparse.Namespace, batch: int) -> Job:
    height, width = (-(-side // 32) * 32 for side in options.size)
    told = [
        f"data.root={folder.as_posix()}",
        f"run={(folder / f'run-{batch}').as_posix()}",
        "train.workers=2",
    ]
    told += [f"model.encoder={options.encoder}", f"train.tile_px=[{height},{width}]", f"train.batch={batch}"]
    return load_job(EXAMPLE, [*told, "data.split.val=0", "data.split.test=0"])


def train(job: Job, batch: int, options: argparse.Namespace) -> dict:
    """Let ours and the plain script train on the same batch in turns."""
    ours = Ours(job, options)
    try:
        device = ours.batch.images.device
        images = normalise(ours.batch.images, ours.batch.valid, ours.statistics).contiguous()
        targets = ours.batch.targets
        # built again: nothing that ours does to its layers is in it
        model = build_model(
            "fastbox", num_classes=len(job.data.classes), in_channels=3, encoder=options.encoder
        )
        model.load_state_dict({name: each.contiguous() for name, each in ours.model.state_dict().items()})
        model = model.to(device).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=job.train.lr)

        def plain() -> None:
            optimizer.zero_grad()
            sum(fastbox.sums(model(images), targets).values()).div(len(images)).backward()
            optimizer.step()

        works = {"plain": plain, "ours": ours.on_device()}
        seconds = in_turns(works, device, options.turns, options.steps)
        told = rates(seconds, batch)
        return {**told, "plan": {name: value for name, value in ours.plan.as_dict().items() if value}}
    finally:
        ours.close()


def find(job: Job, batch: int, options: argparse.Namespace) -> dict:
    """Let ours and the plain script look at the same pictures in turns."""
    bands, statistics = ("red", "green", "blue"), BandStatistics((110.0,) * 3, (60.0,) * 3)
    torch.manual_seed(0)
    model = build_model("fastbox", num_classes=len(job.data.classes), in_channels=3, encoder=options.encoder)
    infos = [open_image(path, job.data) for path in sorted(Path(job.data.root).glob("image_2/*.png"))]
    given = {"encoder": options.encoder}
    card = Card("detect", "fastbox", given, job.data.classes, bands, "uint8", statistics)
    cutting = task_of(job.task).cutting
    ready = make_ready(
        copy.deepcopy(model),
        card,
        job.limits,
        infos,
        cutting=cutting,
        device_name=options.device,
        precision="auto",
    )
    device, info = ready.settings.device, infos[0]
    finder, slow = finder_of(ready, job.predict.boxes), model.to(device).eval()
    images, valid = pictures(infos, batch, device)
    prepare = make_prepare(bands, info, statistics)

    @torch.inference_mode()
    def plain() -> list[list[Tensor]]:
        return boxes_of(slow, normalise(images, valid, statistics), (info.height, info.width))

    works: dict[str, Callable[[], object]] = {
        "plain": plain,
        "ours": lambda: finder.detect(images, valid, prepare),
    }
    told = rates(in_turns(works, device, options.turns, options.steps), batch)
    return {**told, "same": sameness(plain(), finder.detect(images, valid, prepare))}


def boxes_of(model: FastBox, inputs: Tensor, size: tuple[int, int]) -> list[list[Tensor]]:
    """Find as a plain script does: boxes and scores of all cells, suppressed picture by picture."""
    answers = model(inputs)
    boxes = torchvision.ops.clip_boxes_to_image(corners(answers.boxes + answers.deltas).flatten(1, 2), size)
    scores, labels = answers.delta_logits.softmax(-1)[..., 1:].flatten(1, 2).max(-1)
    found = []
    for every in zip(boxes, scores, labels, strict=True):
        there = (every[0][:, 2:] - every[0][:, :2]).amin(1) > 0.01  # the rest of it was clipped away
        sure = (every[1] > model.score) & there
        own, own_scores, own_labels = (each[sure] for each in every)
        kept = torchvision.ops.batched_nms(own, own_scores, own_labels, model.nms_iou)
        found.append([own[kept].cpu(), own_labels[kept].cpu() + 1, own_scores[kept].cpu()])
    return found


def pictures(infos: list, num: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Read pictures as bytes onto the device."""
    opened, images, valid = OpenScenes(), [], []
    try:
        for info in infos[:num]:
            with opened.lend(info) as reader:
                raster = reader.read(info.window)
            images.append(torch.from_numpy(raster.pixels))
            valid.append(torch.from_numpy(raster.valid))
    finally:
        opened.close()
    return torch.stack(images).to(device), torch.stack(valid).to(device)


def in_turns(
    works: dict[str, Callable[[], object]], device: torch.device, num_turns: int, num_steps: int
) -> dict[str, list[float]]:
    """Return the seconds of a step in each turn; a machine that changes its pace does so for all."""
    for work in works.values():  # kernels are chosen, and a step is captured
        for _ in range(max(2, num_steps // 4)):
            work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(num_turns):
        for name, work in works.items():
            wait(device)
            start_s = time.perf_counter()
            for _ in range(num_steps):
                work()
            wait(device)
            seconds[name].append((time.perf_counter() - start_s) / num_steps)
    return seconds


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rates(seconds: dict[str, list[float]], batch: int) -> dict:
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        "images_per_s": {name: round(batch / each, 2) for name, each in medians.items()},
        "ms_per_image": {name: round(1e3 * each / batch, 3) for name, each in medians.items()},
        "faster": round(medians["plain"] / medians["ours"], 3),
        "spread": {name: round(max(each) / min(each), 3) for name, each in seconds.items()},
    }


def sameness(plain: list[list[Tensor]], ours: list) -> dict:
    """Say how many of the plain script's boxes ours found within 2 px, of those it is surest of."""
    num = matched = 0
    for (boxes, _, _), found in zip(plain, ours, strict=True):
        sure = boxes[:20]
        if not len(sure) or not len(found):
            continue
        apart = (sure[:, None] - torch.from_numpy(found.sides).float()).abs().amax(-1).amin(1)
        num, matched = num + len(sure), matched + int((apart <= 2).sum())
    return {"num": num, "within_2_px": matched}


def about(device: str) -> dict:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor()
    tf32 = {"cudnn": torch.backends.cudnn.allow_tf32, "matmul": torch.backends.cuda.matmul.allow_tf32}
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    return {"device": name, "versions": versions, "tf32": tf32}


def told(result: dict, out: Path | None) -> None:
    if out:
        out.write_text(json.dumps(result, indent=2) + "\n")


def table(result: dict) -> str:
    """Lay out images/s of training and ms of finding."""
    lines = ["| | ours | plain | times | published |", "|---|---|---|---|---|"]
    for batch, each in result["training"].items():
        own, cited = each["images_per_s"], PUBLISHED.get(str(batch), "")
        text = f"{own['ours']:.1f} | {own['plain']:.1f} | {each['faster']:.2f} | {cited}"
        lines.append(f"| training, batch {batch}, images/s | {text} |")
    for batch, each in result["finding"].items():
        own, cited = each["ms_per_image"], PUBLISHED["finding_ms"] if batch == 1 else ""
        text = f"{own['ours']:.2f} | {own['plain']:.2f} | {each['faster']:.2f} | {cited}"
        lines.append(f"| finding, batch {batch}, ms an image | {text} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
