"""The losses of G-SCNN: against plain formulas, parts of a batch, edge cases, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from outsize.data.inputs.edges import class_edges
from outsize.data.sample import IGNORE
from outsize.losses import Weights, named_losses
from outsize.losses.gscnn import count_images

SURE = math.log(4.0)


def _case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 3, 12, 10, generator=generator, dtype=torch.float64)
    labels = torch.zeros(4, 12, 10, dtype=torch.uint8)
    labels[:, 4:9, 3:8] = 1
    labels[2, :6] = 2
    labels[1, 10:] = IGNORE
    labels[3] = IGNORE
    edge_logits = 3 * torch.randn(4, 1, 12, 10, generator=generator, dtype=torch.float64)
    return logits, labels, edge_logits, class_edges(labels)


def _sum(name: str, logits: Tensor, labels: Tensor, edge_logits: Tensor, edges: Tensor) -> Tensor:
    loss = named_losses("gscnn")[name]
    torch.manual_seed(0)
    return loss.sum(logits, labels, *((edge_logits, edges) if loss.edges else ()))


def _plain_classes(logits: Tensor, labels: Tensor, weights: Weights = None) -> float:
    """Image by image as it is written: 1 + (1 - share) for classes that occur."""
    total = 0.0
    for scores, truth in zip(logits, labels, strict=True):
        known = truth != IGNORE
        if not known.any():
            continue
        shares = torch.bincount(truth[known].long(), minlength=3).double() / known.sum()
        each = torch.where(shares > 0, 2 - shares, 1.0) * torch.tensor(weights or (1.0,) * 3)
        total += float(functional.cross_entropy(scores[None], truth[None].long(), each, ignore_index=IGNORE))
    return total


@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 4.0)])
def test_classes_are_weighted_image_by_image(weights: Weights) -> None:
    logits, labels, edge_logits, edges = _case()
    losses = named_losses("gscnn", weights)
    assert float(losses["classes"].sum(logits, labels)) == pytest.approx(
        _plain_classes(logits, labels, weights)
    )
    sure = torch.where(edge_logits[:, 0] > SURE, labels, IGNORE)
    assert 0 < int((sure != IGNORE).sum()) < int((labels != IGNORE).sum())
    found = losses["at_edges"].sum(logits, labels, edge_logits, edges)
    assert float(found) == pytest.approx(_plain_classes(logits, sure, weights))
    assert losses["classes"].count(labels) == losses["at_edges"].count(labels, edges) == 3.0
    assert count_images(labels[3:]) == 0.0


def test_edges_and_what_lies_between_weigh_alike() -> None:
    _, labels, edge_logits, edges = _case()
    losses = named_losses("gscnn")
    known = labels != IGNORE
    num, num_on = float(known.sum()), float((known & (edges == 1)).sum())
    weight = torch.where(edges == 1, (num - num_on) / num, num_on / num)
    each = functional.binary_cross_entropy_with_logits(edge_logits[:, 0], edges.double(), reduction="none")
    expected = 20 * float((each * weight)[known].sum()) / num
    found = sum(
        float(losses[name].sum(None, labels, edge_logits, edges)) / losses[name].count(labels, edges)
        for name in ("edge", "no_edge")
    )
    assert found == pytest.approx(expected)


def test_a_batch_without_edges_learns_nothing_of_them() -> None:
    labels = torch.zeros(1, 4, 4, dtype=torch.uint8)
    edges = class_edges(labels)
    losses = named_losses("gscnn")
    scores = torch.randn(1, 1, 4, 4, requires_grad=True)
    assert losses["no_edge"].count(labels, edges) == math.inf
    (losses["no_edge"].sum(None, labels, scores, edges) / math.inf).backward()
    assert scores.grad is not None
    assert scores.grad.abs().max() == 0
    nothing = torch.full_like(labels, IGNORE)
    assert losses["edge"].count(nothing, edges) == 0.0


@pytest.mark.parametrize("name", ["classes", "edge", "no_edge", "at_edges"])
def test_samples_add_up(name: str) -> None:
    case = _case()
    parts = sum(float(_sum(name, *(each[i : i + 1] for each in case))) for i in range(4))
    assert parts == pytest.approx(float(_sum(name, *case)), rel=1e-12)


@pytest.mark.parametrize("name", ["classes", "edge", "no_edge", "at_edges", "dual"])
def test_pixels_without_a_label_change_nothing_and_get_no_gradient(name: str) -> None:
    logits, labels, edge_logits, edges = _case()
    known = (labels != IGNORE)[:, None]
    changed = torch.where(known, logits, -logits), torch.where(known, edge_logits, 5.0)
    assert float(_sum(name, *(changed[0], labels, changed[1], edges))) == pytest.approx(
        float(_sum(name, logits, labels, edge_logits, edges)), rel=1e-12
    )
    logits.requires_grad_()
    edge_logits.requires_grad_()
    _sum(name, logits, labels, edge_logits, edges).backward()
    grads = [each.grad for each in (logits, edge_logits) if each.grad is not None]
    assert len(grads) == 1
    assert all(torch.where(known, 0.0, grad).abs().max() == 0 for grad in grads)
    assert grads[0].isfinite().all()
    assert grads[0].abs().max() > 0


@pytest.mark.parametrize("name", ["classes", "edge", "no_edge", "dual"])
def test_gradients_are_those_of_the_sum(name: str) -> None:
    logits, labels, edge_logits, edges = (each[1:2, ..., 2:9, 1:6] for each in _case())
    edge_logits = edge_logits.clone().requires_grad_()
    logits = logits.clone().requires_grad_()

    def total(logits: Tensor, edge_logits: Tensor) -> Tensor:
        return _sum(name, logits, labels, edge_logits, edges)

    # the largest change and where there is one are kinks: gradients are right beside them
    assert torch.autograd.gradcheck(total, (logits, edge_logits), eps=1e-7, atol=1e-5)


def test_bf16_is_summed_in_float32() -> None:
    labels = torch.zeros(2, 64, 64, dtype=torch.uint8)
    labels[:, 20:] = 1
    logits = torch.zeros(2, 3, 64, 64, dtype=torch.bfloat16)
    edge_logits = torch.zeros(2, 1, 64, 64, dtype=torch.bfloat16)
    for name in named_losses("gscnn"):
        assert _sum(name, logits, labels, edge_logits, class_edges(labels)).dtype == torch.float32
    found = float(_sum("edge", logits, labels, edge_logits, class_edges(labels)))
    assert found == pytest.approx(20 * math.log(2) * 2 * 64 * 4, rel=1e-6)
