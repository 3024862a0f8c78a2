"""How scenes are cut for a model of one kind of answer: by which halo, and whether tiles are to equal the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from outsize.job import LimitsSection
from outsize.measure.facts import gather_facts, halo_of
from outsize.plan.facts import Facts, Machine
from outsize.tiles.halo import Halo


@dataclass(frozen=True)
class Cutting:
    """What a plan for prediction asks about a kind of answer."""

    halo: Callable[..., Halo] = halo_of  # model, bands, size of the largest scene -> what tiles overlap by
    on_shapes: Callable[[nn.Module], nn.Module] = lambda model: model  # predicts where there are only shapes
    # what of a scene of at most this size a model is given at most
    seen_px: Callable[[nn.Module, tuple[int, int]], tuple[int, int]] = lambda model, largest_px: largest_px  # noqa: ARG005
    exactly: bool = True  # a scene in tiles is to have the answer of the whole

    def facts(
        self,
        model: nn.Module,
        num_bands: int,
        machine: Machine,
        *,
        bf16: bool,
        halo: Halo | None = None,
        largest_px: tuple[int, int] | None = None,
        **times: Any,
    ) -> Facts:
        """Gather the facts of a model, for scenes of at most a size where that is known.

        `times` are rates of the machine and times of its operations.
        """
        halo = halo or self.halo(model, num_bands, largest_px)
        return gather_facts(self.on_shapes(model), num_bands, machine, bf16=bf16, halo=halo, **times)

    def limits(self, limits: LimitsSection) -> LimitsSection:
        """Return the limits of prediction: tiles whose answers are never those of the whole need no leave."""
        return limits if self.exactly else limits.model_copy(update={"allow_approximate": True})


PER_PIXEL = Cutting()
