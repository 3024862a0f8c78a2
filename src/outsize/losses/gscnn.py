"""The losses of G-SCNN: classes weighted image by image, edges, classes at edges, and edges that classes make.

With the mathematics that its authors meant. Where this differs from what they released:

- the mean is over images, not their sum on each device, so that it does not depend on how many devices there are;
- the edge loss takes logits: the release takes the sigmoid of a sigmoid;
- pixels without a label count in none of the losses: the release learns edges on them, too;
- an image of which no pixel is at an edge adds 0: the release divides by zero;
- what `dual` does differently stands there; which pixels are edges, in `data/inputs/edges.py`.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from outsize.data.sample import IGNORE
from outsize.losses.dual import dual_sum
from outsize.losses.loss import Loss, Weights, precise, weights_on

_EDGE_FACTOR = 20.0
_SURE = math.log(0.8 / (1 - 0.8))  # the logit of 0.8: from there on an edge is taken to be seen


def gscnn(weights: Weights) -> dict[str, Loss]:
    """Return the terms, whose plain sum is the loss; class weights of the job multiply those of each image.

    The edge loss weighs pixels on an edge by the share of those that are not, and the other way round, shares being
    those of the whole step. It is two sums, each over a count that is known beforehand:

        20 / n (q / n * sum on edges + p / n * sum off edges)     of n pixels, p on edges and q not
        = 20 * sum on edges / (n^2 / q) + 20 * sum off edges / (n^2 / p)
    """
    return {
        "classes": Loss(partial(_classes, weights=weights), count_images, local=False),
        "edge": Loss(partial(_edge_sum, on_edge=True), partial(_edge_count, on_edge=True), True, edges=True),
        "no_edge": Loss(
            partial(_edge_sum, on_edge=False), partial(_edge_count, on_edge=False), True, edges=True
        ),
        "at_edges": Loss(
            partial(_classes_at_edges, weights=weights),
            lambda labels, _: count_images(labels),
            local=False,
            edges=True,
        ),
        "dual": Loss(dual_sum, count_images, local=False),
    }


def count_images(labels: Tensor) -> float:
    """Count the images of which any pixel has a label."""
    return float(torch.count_nonzero((labels != IGNORE).flatten(1).any(1)))


def _classes(logits: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    """Add up the weighted means of -log p(label) of the images; rare classes of an image weigh up to twice."""
    scores = precise(logits)
    classes = labels.long()
    num_px = torch.zeros(len(labels), IGNORE + 1, dtype=scores.dtype, device=scores.device)
    num_px.scatter_add_(1, classes.flatten(1), torch.ones_like(classes.flatten(1), dtype=scores.dtype))
    num_px[:, IGNORE] = 0
    shares = num_px / num_px.sum(1, keepdim=True).clamp_min(1)
    of_class = torch.where(num_px > 0, 2 - shares, 0.0)
    if weights is not None:
        of_class = of_class * weights_on(weights, scores.device, scores.dtype)
    surprise = functional.cross_entropy(scores, classes, ignore_index=IGNORE, reduction="none")
    each = of_class.gather(1, classes.flatten(1)) * surprise.flatten(1)
    return (each.sum(1) / (of_class * num_px).sum(1).clamp_min(1e-12)).sum()


def _classes_at_edges(
    logits: Tensor, labels: Tensor, edge_logits: Tensor, _: Tensor, weights: Weights
) -> Tensor:
    """Return the loss of classes at those pixels alone where the network is sure of an edge."""
    sure = edge_logits.detach()[:, 0] > _SURE
    return _classes(logits, torch.where(sure, labels, torch.full_like(labels, IGNORE)), weights)


def _edge_sum(_: Tensor, labels: Tensor, edge_logits: Tensor, edges: Tensor, *, on_edge: bool) -> Tensor:
    scores = precise(edge_logits)[:, 0]
    surprise = functional.softplus(
        -scores if on_edge else scores
    )  # -log of the sigmoid, or of what it leaves
    counted = (labels != IGNORE) & (edges == int(on_edge))
    return _EDGE_FACTOR * torch.where(counted, surprise, 0.0).sum()


def _edge_count(labels: Tensor, edges: Tensor, *, on_edge: bool) -> float:
    labelled = labels != IGNORE
    num_px = int(torch.count_nonzero(labelled))
    num_others = int(torch.count_nonzero(labelled & (edges != int(on_edge))))
    if num_px == 0:
        return 0.0
    return num_px**2 / num_others if num_others else math.inf  # all of one kind: that kind weighs nothing
