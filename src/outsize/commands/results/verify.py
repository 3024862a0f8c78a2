"""`outsize verify RUN`: proof that tiling and the training's plan changed nothing, on the run's own model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.accounts import accounted
from outsize.errors import PlanError, VerifyError, explain
from outsize.job import load_job
from outsize.job.naming import naming
from outsize.progress import Reporter
from outsize.runs import RunFolder, as_written, open_run, read_json, write_json

if TYPE_CHECKING:
    from outsize.infer.ready import Ready
    from outsize.plan.plan import Plan
    from outsize.raster.reading import SceneInfo
    from outsize.train.claims import ProvingGround
    from outsize.train.proofs import StepProof, SwapProof


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
            failures += _training(train_plan, ready, job.train.loss, result, reporter)
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
    plan: Plan | None, ready: Ready, loss: str, result: dict[str, Any], reporter: Reporter
) -> list[str]:
    """Try what the plan of the training does, and say of each strategy of it whether that proves it."""
    from outsize.train import claims as of
    from outsize.train.proving import changes_numbers

    result["strategies"] = []
    if plan is None:
        reporter.say("verify", "training: the plain step, or its plan is not known: nothing to prove")
        return []
    ground = of.ProvingGround(ready.model, ready.card, loss, ready.halo.stride_px, ready.settings.device)
    failures, claims = [], []
    if plan.compile is not None:
        reporter.say(
            "verify", f"compiling {len(plan.compile.paths)} blocks to compare them: this takes a while"
        )
        missing = of.of_compile(ground.device)
        if missing is not None:
            claims.append(missing)
            plan = replace(plan, compile=None)
    proof = None
    if changes_numbers(plan):
        try:
            proof = _step(plan, ground, result, reporter)
        except PlanError as error:
            if plan.compile is None:
                raise
            claims.append(of.not_compiled(str(error)))
            plan = replace(plan, compile=None)
            proof = _step(plan, ground, result, reporter) if changes_numbers(plan) else None
        if proof is not None:
            claims += of.of_step(plan, proof, ground)
            failures += _failed_step(proof)
    if plan.swap is not None:
        swap = _swap(plan, ground, result, reporter)
        claims.append(of.of_swap(swap, ground.device.type))
        failures += (
            [] if swap.passed else [f"a swapped step differs from the resident one by {swap.apart.worst}"]
        )
    others = [] if plan.fuse is None else [of.of_fuse(plan, ground)]
    others += of.of_recording(plan, ground) if plan.graph or plan.paged else []
    failures += [each.text() for each in others if each.failed]
    result["strategies"] = [each.as_dict() for each in (*claims, *others)]
    for claim in (*claims, *others):
        reporter.say("verify", claim.text(), **claim.as_dict())
    return failures


def _failed_step(proof: StepProof) -> list[str]:
    if proof.passed or not proof.exact:
        return []
    return [f"a step as planned differs from the plain one by {proof.apart.worst}"]


def _step(plan: Plan, ground: ProvingGround, result: dict[str, Any], reporter: Reporter) -> StepProof:
    from outsize.train.proving import prove_step

    proof = prove_step(plan, **ground.given())
    result["planned_step"] = proof.as_dict()
    reporter.say("verify", proof.text(), **result["planned_step"])
    # double precision makes no casts, so a plan for bf16 may name some that are not there
    for missed, how in ((proof.unmet, "did not appear"), (proof.refused, "had to be kept")):
        if missed:
            text = f"warning: {len(missed)} of the tensors planned to be recomputed {how}: {'; '.join(missed[:3])}"
            reporter.say("warning", text, tensors=missed)
    return proof


def _swap(plan: Plan, ground: ProvingGround, result: dict[str, Any], reporter: Reporter) -> SwapProof:
    from outsize.train.proving import prove_swap

    proof = prove_swap(plan, **ground.given())
    result["swapped_equals_resident"] = proof.as_dict()
    reporter.say("verify", proof.text(), **result["swapped_equals_resident"])
    if proof.num_moved < proof.num_keys:
        text = (
            f"warning: {proof.num_keys - proof.num_moved} of the tensors planned to be swapped did not appear"
        )
        reporter.say("warning", text, num_moved=proof.num_moved, num_keys=proof.num_keys)
    return proof


def _any_scene(run: RunFolder) -> Path:
    from outsize.data.recall import recall_images

    held = read_json(run.split, "train")
    with as_written(run.split, "train"):
        split = next(split for split in ("test", "val", "train") if held[split])
    return recall_images(run.split, split)[0]
