"""How a training is spread over many GPUs: tiles, stages and replicas, what an epoch takes, and where the time goes.

    GPUs = replicas x stages          a replica is a pipeline of stages, in one host where that is large enough
    step = samples x tiles, shared among replicas, each share in micro-batches through the stages

Every arrangement that fits is played out; the fastest is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from outsize.errors import PlanError, explain
from outsize.plan.links import Network
from outsize.plan.partition import Chain, Partition, Terms, cut_chain, fold_chain
from outsize.plan.simulate.exchange import exposed_s, sum_gradients_s
from outsize.plan.simulate.ordering import best_orders
from outsize.plan.simulate.pipeline import Played, stages_of
from outsize.plan.simulate.replicas import scaled
from outsize.units import format_count

__all__ = ["STEP_SPREAD", "Arrangement", "Cluster", "Workshare", "arrange"]

# Standard deviation of the steps of one GPU, as a share: fitted to all published tables of docs/simulator.md. Which is
# why that page reports each with what the others alone say.
STEP_SPREAD = 0.005
_PLAYED = (
    48  # micro-batches played out one by one; more of them take as long as the slowest rank needs for each
)
_STAGES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_MOST_LAYERS = 96  # that are distinguished: more of them make no better cut
_MOST_TRIED = 6  # arrangements that are played out, of those whose bounds are best
_MOST_MICRO = 16  # samples in a micro-batch


@dataclass(frozen=True)
class Cluster:
    """GPUs that are alike, and what connects them."""

    num_gpus: int
    network: Network
    room_bytes: float  # of each GPU
    spread: float = STEP_SPREAD


@dataclass(frozen=True)
class Workshare:
    """What there is to do: samples or tiles of a step and of an epoch, and the layers of a micro-batch of some."""

    step_samples: int
    epoch_samples: int
    chain_of: Callable[[int], Chain]


@dataclass(frozen=True)
class Arrangement:
    """One way to spread the work, as it was played out."""

    num_replicas: int
    num_stages: int
    folded: bool
    micro_batch: int
    num_micro: int
    step_s: float
    epoch_s: float
    efficiency: float  # against GPUs that only compute, keep everything and never wait
    peak_bytes: int
    recomputes: bool
    shares: dict[str, float]  # of the step
    partition: Partition
    played: Played

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, without what was played out."""
        found = asdict(replace(self, played=Played((), self.played.stages)))
        del found["played"], found["partition"]
        return found


def arrange(work: Workshare, cluster: Cluster) -> list[Arrangement]:
    """Return the ways that fit, the fastest first; refuse where none uses all GPUs, or none fits."""
    tried: list[tuple[float, Chain, Partition, int]] = []
    refused: list[str] = []

    @cache
    def _chain(micro_batch: int) -> Chain:
        return work.chain_of(micro_batch).merged(_MOST_LAYERS)

    for num_stages in _stage_counts(cluster):
        num_replicas = cluster.num_gpus // num_stages
        if num_replicas > work.step_samples:
            continue
        share = math.ceil(work.step_samples / num_replicas)
        for micro_batch in _micro_batches(share):
            chain = _chain(micro_batch)
            num_micro = math.ceil(share / micro_batch)
            whole_s = chain.forward_s(0, len(chain)) + chain.backward_s(0, len(chain))
            least_s = (num_micro - 1) * whole_s / num_stages + whole_s
            if num_stages > len(chain) or least_s >= min((each[0] for each in tried), default=math.inf):
                continue  # no cut could be faster than what was found
            for partition in _partitions(chain, num_stages, num_micro, cluster, refused):
                tried.append((partition.bound_s, chain, partition, micro_batch))
    tried = sorted(tried, key=lambda each: each[0])[:_MOST_TRIED]
    found = [_played_out(work, cluster, *each[1:]) for each in tried]
    if not found and refused:
        raise PlanError(refused[-1])
    if not found:
        raise PlanError(
            explain(
                "there are more GPUs than parts of a step",
                f"{cluster.num_gpus} GPUs for {format_count(work.step_samples, 'sample')} or tiles",
                f"at most {_STAGES[-1]} GPUs for each, in a number that divides all of them",
                "take fewer GPUs, or a larger train.batch",
            )
        )
    return sorted(found, key=lambda each: (each.step_s, each.num_stages))


def _stage_counts(cluster: Cluster) -> list[int]:
    return [each for each in _STAGES if cluster.num_gpus % each == 0]


def _micro_batches(share: int) -> list[int]:
    return [size for size in (1, 4, _MOST_MICRO) if size <= share]


def _partitions(
    chain: Chain, num_stages: int, num_micro: int, cluster: Cluster, refused: list[str]
) -> Iterator[Partition]:
    net = cluster.network
    link = net.inside if num_stages <= net.gpus_per_host else net.between
    terms = Terms(num_stages, num_micro, cluster.room_bytes, link.bytes_per_s, link.latency_s)
    for cut in (cut_chain, fold_chain) if 1 < num_stages <= len(chain) // 2 else (cut_chain,):
        try:
            yield cut(chain, terms)
        except PlanError as error:
            if cut is cut_chain:  # a fold needs more layers, and says less
                refused.append(str(error))


def _played_out(
    work: Workshare, cluster: Cluster, chain: Chain, partition: Partition, micro_batch: int
) -> Arrangement:
    num_micro, num_stages = partition.terms.num_micro, partition.terms.num_ranks
    num_replicas = cluster.num_gpus // num_stages
    stages = stages_of(chain, partition)
    played = best_orders(stages, min(num_micro, _PLAYED), cluster.room_bytes)[0].played
    busiest_s = max(map(played.busy_s, range(num_stages))) / min(num_micro, _PLAYED)
    pipeline_s = played.step_s + busiest_s * max(0, num_micro - _PLAYED)
    summed_s = _gradients_s(chain, partition, played, cluster, num_replicas)
    step = scaled(pipeline_s, cluster.num_gpus, spread=cluster.spread, gradients_s=summed_s)
    own_s = num_micro * partition.whole_s / num_stages  # of each GPU, if all had the same and kept everything
    busy_s = sum(map(played.busy_s, range(num_stages))) / num_stages / min(num_micro, _PLAYED) * num_micro
    filled = work.step_samples / (num_replicas * num_micro * micro_batch)
    shares = {
        "computing": own_s * filled / step.step_s,
        "samples that do not divide evenly": own_s * (1 - filled) / step.step_s,
        "recomputing": (busy_s - own_s) / step.step_s,
        "waiting for other stages": (pipeline_s - busy_s) / step.step_s,
        "waiting for the slowest": step.waits_s / step.step_s,
        "gradients": step.gradients_s / step.step_s,
    }
    num_steps = max(1, work.epoch_samples // work.step_samples)  # whole batches, as training takes them
    return Arrangement(
        num_replicas,
        num_stages,
        partition.folded,
        micro_batch,
        num_micro,
        step.step_s,
        num_steps * step.step_s,
        shares["computing"],
        max(partition.peaks()),
        any(stage.recomputes for stage in partition.stages),
        {name: share for name, share in shares.items() if share > 5e-4},
        partition,
        played,
    )


def _gradients_s(
    chain: Chain, partition: Partition, played: Played, cluster: Cluster, num_replicas: int
) -> float:
    """Return how long the sum of gradients takes beyond the step: that of each stage begins in its last backward."""
    if num_replicas < 2:
        return 0.0
    num_stages, net = partition.terms.num_ranks, cluster.network
    # replicas of a stage are as many hosts apart as stages fill, and all stages share what leaves a host
    here = max(1, net.gpus_per_host // num_stages)
    sharing = min(num_stages, net.gpus_per_host)
    own = Network(net.inside, replace(net.between, bytes_per_s=net.between.bytes_per_s / sharing), here)
    latest_s = played.step_s
    for number, stage in enumerate(partition.stages):
        end_s = max(beat.end_s for beat in played.beats if beat.stage == number and beat.doing == "backward")
        ready = [
            (chain.backward_s(first, stage.end), chain.weights_bytes(first, first + 1))
            for first in range(stage.end - 1, stage.first - 1, -1)
        ]
        backward_s = chain.backward_s(stage.first, stage.end)
        late_s = exposed_s(ready, backward_s, lambda size: sum_gradients_s(size, num_replicas, own))
        latest_s = max(latest_s, end_s + late_s)
    return latest_s - played.step_s
