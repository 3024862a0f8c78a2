"""`outsize verify RUN`: proof that tiling and the training's plan changed nothing, on the run's own model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.accounts import accounted
from outsize.errors import VerifyError, explain
from outsize.job import load_job
from outsize.job.naming import naming
from outsize.progress import Reporter
from outsize.runs import RunFolder, as_written, open_run, read_json, write_json

if TYPE_CHECKING:
    from outsize.infer.ready import Ready
    from outsize.plan.plan import Plan
    from outsize.raster.reading import SceneInfo


def verify(
    run_path: Path, *, overrides: Sequence[str], device_name: str, reporter: Reporter
) -> dict[str, Any]:
    """Compare tiled with whole logits, probe the halo, and run one training step as planned and plain.

    Fails above tolerance, unless the plan in question is approximate.
    """
    from outsize.data.scenes import open_image
    from outsize.infer.ready import load_ready
    from outsize.measure.machine import pick_device
    from outsize.planning.planned import planned_otherwise
    from outsize.tasks import task_of

    run = open_run(run_path)
    job = load_job(run.job, overrides)
    task = task_of(job.task)
    info = open_image(_any_scene(run), job.data)
    train_plan = planned_otherwise(run)
    with accounted(run, "verify", reporter):
        pick_device(device_name)
        with naming(run.job), reporter.doing("plan"):
            ready = load_ready(
                run.best, job.limits, [info], task.cutting, device_name=device_name, precision="fp32"
            )
        result: dict[str, Any] = {
            "scene": str(info.path),
            "exact": ready.plan.exact,
            "tiled_equals_whole": {},
        }
        failures = []
        if not task.cutting.exactly:
            reporter.say("verify", f"tiled = whole: not compared, {task.info.joined}")
        elif ready.takes_whole:
            reporter.say("verify", "tiled = whole: not compared, pictures of this size are not cut")
        else:
            with reporter.doing("tiles"):
                failures += _tiles(ready, info, result, reporter)
        with reporter.doing("steps"):
            failures += _training(run, train_plan, ready, job.train.loss, result, reporter)
        write_json(run.verify, result)
        if failures:
            need = "tiled logits equal to whole ones, and a step as planned equal to the plain and to the resident one"
            remedy = "report this model: its halo or its plan is derived wrongly"
            raise VerifyError(
                explain(f"run {run.path} fails verification", "; ".join(failures), need, remedy)
            )
    return result


def _tiles(ready: Ready, info: SceneInfo, result: dict[str, Any], reporter: Reporter) -> list[str]:
    """Make the proofs that tiles have the answer of the whole, and tell each when it is there."""
    from outsize.infer.proof import HaloProof, TiledProof, TrialProof, prove_tiles

    failures = []
    for proof in prove_tiles(ready, info):
        match proof:
            case TiledProof():
                details = result["tiled_equals_whole"][proof.dtype] = proof.as_dict()
            case HaloProof():
                details = result["halo_probe"] = proof.as_dict()
            case TrialProof():
                details = result["trial"] = proof.as_dict()
            case _:
                details = {}
        reporter.say("verify", proof.text(), **details)
        failures += [proof.failure] if proof.failure else []
    return failures


def _training(
    run: RunFolder, plan: Plan | None, ready: Ready, loss: str, result: dict[str, Any], reporter: Reporter
) -> list[str]:
    """Try what the plan of the training does, and tell each strategy's proof when it is there."""
    from outsize.train.prove import ProvingGround, prove_plan

    result["strategies"] = []
    if plan is None:
        why = (
            "trained by the plain step, which gives nothing up"
            if run.plan.exists()
            else "no plan is kept in this run"
        )
        reporter.say("verify", f"training: {why}: nothing to prove")
        return []
    ground = ProvingGround(ready.model, ready.card, loss, ready.halo.stride_px, ready.settings.device)
    failures = []
    for found in prove_plan(plan, ground):
        reporter.say("warning" if found.is_warning else "verify", found.text, **found.details)
        if found.kept_as == "strategies":
            result["strategies"].append(found.details)
        elif found.kept_as is not None:
            result[found.kept_as] = found.details
        failures += [found.failure] if found.failure else []
    return failures


def _any_scene(run: RunFolder) -> Path:
    from outsize.data.recall import recall_images

    held = read_json(run.split, "train")
    with as_written(run.split, "train"):
        split = next(split for split in ("test", "val", "train") if held[split])
    return recall_images(run.split, split)[0]
