"""The proof that a scene in tiles has the answer of the whole: logits compared, the halo probed, the model tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from outsize.errors import ModelError, found_in
from outsize.infer.compare import Difference, measure_on_scene
from outsize.infer.ready import Ready
from outsize.measure.trying import ProbeResult, probe_halo, try_tiling
from outsize.models import num_inputs
from outsize.raster.reading import SceneInfo
from outsize.tiles.halo import Halo, Obstacle

TOLERANCES = {"float32": 1e-5, "float64": 1e-11}  # of the largest logit


@dataclass(frozen=True)
class TiledProof:
    """Logits computed tile by tile against those of the whole, on a part of a scene, in one precision."""

    dtype: str
    difference: Difference
    tolerance: float
    exact: bool  # what the plan says
    num_passes: int = 1  # more: every one of them was cut, and what they add up compared besides

    @property
    def passed(self) -> bool:
        """Whether they differ by rounding at most."""
        return self.difference.relative <= self.tolerance

    @property
    def failure(self) -> str:
        """What is wrong, in words; "" where nothing is, or where the plan is approximate."""
        if self.passed or not self.exact:
            return ""
        return f"{self.dtype} logits differ by {self.difference.relative:.1e} of the largest"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "largest_difference": self.difference.largest,
            "largest_logit": self.difference.largest_logit,
            "relative": self.difference.relative,
            "tolerance": self.tolerance,
            "interior_tiles": self.difference.interior_tiles,
            "passed": self.passed,
        }

    def text(self) -> str:
        """Return one line for a person."""
        relative, verdict = self.difference.relative, "yes" if self.passed else "NO"
        small = "" if self.difference.interior_tiles or self.num_passes > 1 else f" ({_SMALL})"
        how = "tiled" if self.num_passes == 1 else f"in {self.num_passes} passes"
        return (
            f"{how} = whole, {self.dtype}: logits differ by at most {self.difference.largest:.2e}, {relative:.2e} "
            f"of the largest (tolerance {self.tolerance:.0e}): {verdict}{small}"
        )


_SMALL = "the scene is small: every tile touches its border, only the probe below tests the halo"


@dataclass(frozen=True)
class HaloProof:
    """The halo filled with NaN all around: what lies beyond it must not reach the core."""

    halo: Halo
    probe: ProbeResult

    @property
    def failure(self) -> str:
        """What is wrong, in words; a halo larger than needed costs time, not truth."""
        return "" if self.probe.sufficient else "pixels outside the derived halo reach the core"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"sufficient": self.probe.sufficient, "tight": self.probe.tight}

    def text(self) -> str:
        """Return one line for a person."""
        rows, cols, probe = self.halo.rows, self.halo.cols, self.probe
        return (
            f"halo: rows {rows.before_px}/{rows.after_px} px, columns {cols.before_px}/{cols.after_px} px; "
            f"sufficient: {'yes' if probe.sufficient else 'NO'}, tight: {'yes' if probe.tight else 'no'}"
        )


@dataclass(frozen=True)
class TrialProof:
    """Small pictures that differ in size, place, batch and history: the answer must not."""

    found: tuple[Obstacle, ...]

    @property
    def failure(self) -> str:
        """What is wrong, in words."""
        return "; ".join(map(str, self.found))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        found = [{"module": each.module, "kind": each.kind, "reason": each.reason} for each in self.found]
        return {"passed": not self.found, "found": found}

    def text(self) -> str:
        """Return one line for a person."""
        verdict = f"NO: {self.failure}" if self.found else "yes"
        return (
            f"trial: the same answer whatever the size, the place, the batch and the runs before: {verdict}"
        )


@dataclass(frozen=True)
class Unproven:
    """A proof that could not be made with this model, and why."""

    what: str
    why: str

    @property
    def failure(self) -> str:
        """Nothing: that something is not proved does not make it wrong."""
        return ""

    def text(self) -> str:
        """Return one line for a person."""
        return f"{self.what}: not proved: {self.why}"


Proof = TiledProof | HaloProof | TrialProof | Unproven


def prove_tiles(ready: Ready, info: SceneInfo) -> Iterator[Proof]:
    """Yield each proof as soon as it is there; of a plan that is approximate, only how far tiles are from the whole."""
    inputs, why = num_inputs(ready.model, len(ready.card.bands)), ""
    for name, tolerance in TOLERANCES.items():
        try:
            difference = measure_on_scene(ready, info, ready.tiling.halo, dtype=getattr(torch, name))
        except ModelError as error:  # a module may hold numbers of one type that goes with no other
            why = f"the model does not run in {name} ({found_in(str(error))})"
            yield Unproven(f"tiled = whole, {name}", why)
        else:
            num_passes = 1 if ready.plan.passes is None else ready.plan.passes.num
            yield TiledProof(name, difference, tolerance, ready.plan.exact, num_passes)
    if not ready.plan.exact or ready.plan.passes is not None:  # which has no halo
        return
    if why:
        yield Unproven("halo", why)
    else:
        yield HaloProof(ready.halo, probe_halo(ready.model, ready.halo, in_channels=inputs))
    yield TrialProof(try_tiling(ready.model, ready.halo, inputs, device=ready.settings.device))
