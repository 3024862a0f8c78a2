"""A training on GPUs that need not be here, played out from numbers.

Partition ---> stages_of ---> play       GPipe, 1F1B, interleaved, zero-bubble; who runs what, and who waits
                  '-> best_orders        each of them with more and fewer micro-batches on their way, the best first
gradients ---> sum_gradients_s           ring or tree over named links, beneath backward or after it
Pipeline  ---> play_planned              the same of a plan: the order of work that its ranks keep to
a step    ---> scaled                    with the slowest of n, with gradients, with samples that come late
all of it ---> arrange                   tiles x stages x replicas of a cluster, the fastest first
FlatUNet: the published U-Nets as layers, from their sizes alone
"""

from outsize.plan.simulate.cluster import Arrangement, Cluster, Workshare, arrange
from outsize.plan.simulate.ordering import best_orders
from outsize.plan.simulate.pipeline import Played, stages_of
from outsize.plan.simulate.planned import play_planned

__all__ = [
    "Arrangement",
    "Cluster",
    "Played",
    "Workshare",
    "arrange",
    "best_orders",
    "play_planned",
    "stages_of",
]
