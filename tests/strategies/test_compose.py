"""The plain step: a batch may be split anywhere, also over processes, and its gradients add up."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from outsize.data.normalise import BandStatistics
from outsize.data.sample import IGNORE, Batch
from outsize.models import build_model
from outsize.plan.plan import Plan
from outsize.strategies.compose import Step, compose
from outsize.tasks.segment import count_terms, make_loss_terms

_PLAN = Plan(purpose="train", batch=4, limit_bytes=1, peak_bytes=1, exact=True, why=())


def _model_and_step() -> tuple[torch.nn.Module, Step]:
    torch.manual_seed(5)
    model = build_model("unet", num_classes=3, in_channels=2, levels=2, width=4, norm="group").double()
    terms = make_loss_terms("cross_entropy", BandStatistics((0.0, 0.0), (1.0, 1.0)))

    def in_double(model: torch.nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        return dict(terms(lambda x: model(x.double()), batch))  # type: ignore[arg-type]

    return model, compose(model, in_double, _PLAN, bf16=False)


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (4, 16, 16), generator=generator).to(torch.uint8)
    labels[0] = IGNORE  # uneven halves: a mean of means would be wrong
    labels[1, :9] = IGNORE
    return Batch(
        images=torch.randn(4, 2, 16, 16, generator=generator),
        valid=torch.ones(4, 16, 16, dtype=torch.bool),
        labels=labels,
        totals=count_terms("cross_entropy", labels),
    )


def _gradients(parts: list[slice]) -> tuple[list[torch.Tensor], float]:
    model, step = _model_and_step()
    batch = _batch()
    shares = [step(batch.part(part), last=part is parts[-1])["cross_entropy"] for part in parts]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return gradients, float(torch.stack(shares).sum())


def _relative(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    largest = max(float(t.abs().max()) for t in theirs)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) / largest


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    whole, whole_loss = _gradients([slice(0, 4)])
    parts, parts_loss = _gradients([slice(0, 1), slice(1, 4)])
    assert _relative(parts, whole) < 1e-14
    assert abs(parts_loss - whole_loss) < 1e-14


def test_the_loss_is_the_mean_over_labelled_pixels() -> None:
    model, step = _model_and_step()
    batch = _batch()
    share = step(batch, last=True)["cross_entropy"]
    logits = model(batch.images.double())
    mean = torch.nn.functional.cross_entropy(logits, batch.labels.long(), ignore_index=IGNORE)
    torch.testing.assert_close(share, mean)


def _half(rank: int, rendezvous: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    gradients, _ = _gradients([slice(2 * rank, 2 * rank + 2)])
    for gradient in gradients:
        dist.all_reduce(gradient)
    if rank == 0:
        torch.save(gradients, out)
    dist.destroy_process_group()


def test_two_processes_with_half_a_batch_each_add_up(tmp_path: Path) -> None:
    out = tmp_path / "gradients.pt"
    mp.spawn(_half, args=(str(tmp_path / "rendezvous"), str(out)), nprocs=2)
    whole, _ = _gradients([slice(0, 4)])
    assert _relative(torch.load(out, weights_only=True), whole) < 1e-14
