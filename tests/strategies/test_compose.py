"""The plain step: a batch may be split anywhere, also over processes, and its gradients add up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from outsize.data.statistics import BandStatistics
from outsize.data.batch import Batch
from outsize.data.sample import IGNORE
from outsize.losses import Weights
from outsize.models import build_model
from outsize.plan.plan import Plan
from outsize.strategies.compose import Step, compose
from outsize.tasks.segment import count_terms, make_loss_terms

_PLAN = Plan(purpose="train", batch=4, limit_bytes=1, peak_bytes=1, exact=True, why=())


LOSSES = pytest.mark.parametrize(
    ("loss", "weights"),
    [
        ("cross_entropy", None),
        ("cross_entropy", (0.3, 1.0, 5.0)),
        ("focal", None),
        ("focal", (0.3, 1.0, 5.0)),
        ("dice", None),
        ("dice", (0.3, 1.0, 5.0)),
        ("cross_entropy+dice", (0.3, 1.0, 5.0)),
    ],
)


def _model_and_step(loss: str, weights: Weights) -> tuple[torch.nn.Module, Step]:
    torch.manual_seed(5)
    model = build_model("unet", num_classes=3, in_channels=2, levels=2, width=4, norm="group").double()
    terms = make_loss_terms(loss, BandStatistics((0.0, 0.0), (1.0, 1.0)), weights)

    def in_double(model: torch.nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        return dict(terms(lambda x: model(x.double()), batch))  # type: ignore[arg-type]

    return model, compose(model, in_double, _PLAN, bf16=False)


def _batch(loss: str, weights: Weights) -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (4, 16, 16), generator=generator).to(torch.uint8)
    labels[0] = IGNORE  # uneven halves: a mean of means would be wrong
    labels[1, :9] = IGNORE
    labels[2] = 1  # nor does every sample have every class
    return Batch(
        images=torch.randn(4, 2, 16, 16, generator=generator),
        valid=torch.ones(4, 16, 16, dtype=torch.bool),
        labels=labels,
        totals=count_terms(loss, labels, weights),
    )


def _gradients(parts: list[slice], loss: str, weights: Weights) -> tuple[list[torch.Tensor], float]:
    model, step = _model_and_step(loss, weights)
    batch = _batch(loss, weights)
    shares = [share for part in parts for share in step(batch.part(part), last=part is parts[-1]).values()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return gradients, float(torch.stack(shares).sum())


def _relative(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    largest = max(float(t.abs().max()) for t in theirs)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) / largest


@LOSSES
def test_parts_of_a_batch_add_up_to_the_whole(loss: str, weights: Weights) -> None:
    whole, whole_loss = _gradients([slice(0, 4)], loss, weights)
    parts, parts_loss = _gradients([slice(0, 1), slice(1, 4)], loss, weights)
    assert _relative(parts, whole) < 1e-14
    assert abs(parts_loss - whole_loss) < 1e-14


def test_the_loss_is_the_mean_over_labelled_pixels() -> None:
    model, step = _model_and_step("cross_entropy", None)
    batch = _batch("cross_entropy", None)
    share = step(batch, last=True)["cross_entropy"]
    logits = model(batch.images.double())
    mean = torch.nn.functional.cross_entropy(logits, batch.labels.long(), ignore_index=IGNORE)
    torch.testing.assert_close(share, mean)


def _half(rank: int, rendezvous: str, out: str, cases: list[tuple[str, Weights]]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    found = []
    for loss, weights in cases:
        gradients, _ = _gradients([slice(2 * rank, 2 * rank + 2)], loss, weights)
        for gradient in gradients:
            dist.all_reduce(gradient)
        found.append(gradients)
    if rank == 0:
        torch.save(found, out)
    dist.destroy_process_group()


def test_two_processes_with_half_a_batch_each_add_up(tmp_path: Path) -> None:
    out, cases = tmp_path / "gradients.pt", list(LOSSES.args[1])  # one start of processes for all of them
    mp.spawn(_half, args=(str(tmp_path / "rendezvous"), str(out), cases), nprocs=2)
    for found, (loss, weights) in zip(torch.load(out, weights_only=True), cases, strict=True):
        whole, _ = _gradients([slice(0, 4)], loss, weights)
        assert _relative(found, whole) < 1e-14, loss
