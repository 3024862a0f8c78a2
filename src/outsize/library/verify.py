"""`outsize.verify`: whether a scene in tiles has the answer of the whole, for a run's model or any module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from outsize.data.scenes import open_image
from outsize.infer.proof import HaloProof, Proof, TiledProof, TrialProof, Unproven, prove_tiles
from outsize.infer.ready import Ready, load_ready
from outsize.job import check_limits, load_job
from outsize.library.predict import Statistics, ready_module
from outsize.raster.reading import SceneInfo, describe
from outsize.runs import open_run
from outsize.tasks import task_of
from outsize.tiles.halo import Halo


@dataclass(frozen=True)
class Verified:
    """What was proved of a model on a scene."""

    scene: str
    exact: bool  # what the plan for the scene claims
    equals: str | None  # what the answer then is; None: the plan is approximate
    why: tuple[str, ...]  # the plan's words
    halo: Halo
    proofs: tuple[Proof, ...]  # none where the model looks at whole pictures and is given them

    @property
    def failures(self) -> tuple[str, ...]:
        """What does not hold, a line each."""
        missing = () if self.exact else tuple(each for each in self.why if each.startswith("approximate"))
        unseen = ("nothing could be compared",) if self.proofs and not self.tiled else ()
        return (*missing, *unseen, *(each.failure for each in self.proofs if each.failure))

    @property
    def ok(self) -> bool:
        """Whether the map of the scene is proved to be the model's answer to it, to rounding."""
        return self.exact and not self.failures

    @property
    def tiled(self) -> dict[str, TiledProof]:
        """Logits of tiles against those of the whole, by precision."""
        return {each.dtype: each for each in self.proofs if isinstance(each, TiledProof)}

    @property
    def probe(self) -> HaloProof | None:
        """The probe of the halo with NaN, where one was made."""
        return next((each for each in self.proofs if isinstance(each, HaloProof)), None)

    @property
    def trial(self) -> TrialProof | None:
        """The trial on size, place, batch and history, where one was made."""
        return next((each for each in self.proofs if isinstance(each, TrialProof)), None)

    @property
    def unproven(self) -> tuple[Unproven, ...]:
        """What could not be proved, and why."""
        return tuple(each for each in self.proofs if isinstance(each, Unproven))

    def __str__(self) -> str:
        verdict = f"ok: {self.equals}" if self.ok else f"NOT ok: {'; '.join(self.failures)}"
        lines = [each.text() for each in self.proofs] or ["tiled = whole: not compared, the scene is not cut"]
        return "\n".join([*lines, verdict])


def verify(
    model: nn.Module | str | Path,
    scene: str | Path,
    *,
    statistics: Statistics | None = None,
    limits: dict[str, Any] | None = None,
    device: str = "auto",
) -> Verified:
    """Prove on a scene that its tiles have the answer of the whole; see `ok` and `failures` of what is returned.

    `model`, `statistics` and `limits` are those of `outsize.predict`. Nothing is written, and a model that cannot be
    cut exactly is not refused: it is not ok, and how far its tiles are from the whole is measured.
    """
    bounds = check_limits({**(limits or {}), "allow_approximate": True}, "outsize.verify")
    if isinstance(model, nn.Module):
        info = describe(scene)
        with ready_module(model, info, statistics, bounds, {"device": device, "precision": "fp32"}) as ready:
            return _verified(ready, info)
    run = open_run(Path(model))
    job = load_job(run.job)
    if not limits:
        bounds = job.limits.model_copy(update={"allow_approximate": True})
    info = open_image(Path(scene), job.data)
    cutting = task_of(job.task).cutting
    return _verified(
        load_ready(run.best, bounds, [info], cutting, device_name=device, precision="fp32"), info
    )


def _verified(ready: Ready, info: SceneInfo) -> Verified:
    about = ready.about(info)
    is_cut = task_of(ready.card.task).cutting.exactly and not ready.takes_whole
    proofs = tuple(prove_tiles(ready, info)) if is_cut else ()
    return Verified(
        scene=str(info.path),
        exact=ready.plan.exact,
        equals=about.get("equals"),
        why=ready.plan.why,
        halo=ready.halo,
        proofs=proofs,
    )
