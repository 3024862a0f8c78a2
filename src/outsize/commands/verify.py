"""`outsize verify RUN`: proof that tiling and the training's plan changed nothing, on the run's own model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.naming import naming
from outsize.errors import VerifyError, explain
from outsize.job import load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, read_json, write_json

if TYPE_CHECKING:
    from outsize.infer.ready import Ready
    from outsize.plan.plan import Plan
    from outsize.raster.read import SceneInfo

TOLERANCES = {"float32": 1e-5, "float64": 1e-11}  # of the largest logit


def verify(
    run_path: Path, *, overrides: Sequence[str], device_name: str, reporter: Reporter
) -> dict[str, Any]:
    """Compare tiled with whole logits, probe the halo, and run one training step as planned and plain.

    Fails above tolerance, unless the plan in question is approximate.
    """
    from outsize.commands.planned import planned_otherwise
    from outsize.data.scenes import open_image
    from outsize.infer.ready import load_ready
    from outsize.measure.machine import pick_device
    from outsize.tasks import TASKS

    run = open_run(run_path)
    job = load_job(run.job, overrides)
    info = open_image(_any_scene(run), job.data)
    train_plan = planned_otherwise(run)
    pick_device(device_name)
    with naming(run.job):
        ready = load_ready(run.best, job.limits, [info], device_name=device_name, precision="fp32")
    result: dict[str, Any] = {"scene": str(info.path), "exact": ready.plan.exact, "tiled_equals_whole": {}}
    failures = []
    if not TASKS[ready.card.task].tiles_exactly:
        reporter.say("verify", "tiled = whole: not compared, objects of overlapping tiles are joined")
    elif ready.takes_whole:
        reporter.say("verify", "tiled = whole: not compared, pictures of this size are not cut")
    else:
        failures += _compare(ready, info, result, reporter)
        failures += _probe(ready, result, reporter) if ready.plan.exact else []
    if train_plan is not None:
        failures += _step(train_plan, ready, job.train.loss, result, reporter)
        if train_plan.swap is not None:
            failures += _swap(train_plan, ready, job.train.loss, result, reporter)
    write_json(run.verify, result)
    if failures:
        need = "tiled logits equal to whole ones, and a step as planned equal to the plain and to the resident one"
        remedy = "report this model: its halo or its plan is derived wrongly"
        raise VerifyError(explain(f"run {run.path} fails verification", "; ".join(failures), need, remedy))
    return result


def _compare(ready: Ready, info: SceneInfo, result: dict[str, Any], reporter: Reporter) -> list[str]:
    import torch

    from outsize.infer.compare import measure_on_scene

    failures = []
    for name, tolerance in TOLERANCES.items():
        difference = measure_on_scene(ready, info, ready.tiling.halo, dtype=getattr(torch, name))
        passed = difference.relative <= tolerance
        result["tiled_equals_whole"][name] = {
            "largest_difference": difference.largest,
            "largest_logit": difference.largest_logit,
            "relative": difference.relative,
            "tolerance": tolerance,
            "interior_tiles": difference.interior_tiles,
            "passed": passed,
        }
        verdict = f"{difference.relative:.2e} of the largest (tolerance {tolerance:.0e}): {'yes' if passed else 'NO'}"
        text = f"tiled = whole, {name}: logits differ by at most {difference.largest:.2e}, {verdict}"
        if not difference.interior_tiles:
            text += (
                " (the scene is small: every tile touches its border, only the probe below tests the halo)"
            )
        reporter.say("verify", text, **result["tiled_equals_whole"][name])
        if not passed:
            failures.append(f"{name} logits differ by {difference.relative:.1e} of the largest")
    return failures if ready.plan.exact else []


def _probe(ready: Ready, result: dict[str, Any], reporter: Reporter) -> list[str]:
    from outsize.measure.probe import probe_halo

    probe = probe_halo(ready.model, ready.halo, in_channels=len(ready.card.bands))
    result["halo_probe"] = {"sufficient": probe.sufficient, "tight": probe.tight}
    rows, cols = ready.halo.rows, ready.halo.cols
    text = (
        f"halo: rows {rows.before_px}/{rows.after_px} px, columns {cols.before_px}/{cols.after_px} px; "
        f"sufficient: {'yes' if probe.sufficient else 'NO'}, tight: {'yes' if probe.tight else 'no'}"
    )
    reporter.say("verify", text, **result["halo_probe"])
    # A halo larger than needed costs time, not truth: only an insufficient one is a failure.
    return [] if probe.sufficient else ["pixels outside the derived halo reach the core"]


def _step(plan: Plan, ready: Ready, loss: str, result: dict[str, Any], reporter: Reporter) -> list[str]:
    from outsize.train.proving import prove_step

    device, stride_px = ready.settings.device, ready.halo.stride_px
    proof = prove_step(plan, ready.model, ready.card, loss=loss, stride_px=stride_px, device=device)
    result["planned_step"] = proof.as_dict()
    reporter.say("verify", proof.text(), **result["planned_step"])
    # double precision makes no casts, so a plan for bf16 may name some that are not there
    for missed, how in ((proof.unmet, "did not come up"), (proof.refused, "had to be kept")):
        if missed:
            text = f"warning: {len(missed)} of the tensors planned to be recomputed {how}: {'; '.join(missed[:3])}"
            reporter.say("warning", text, tensors=missed)
    if proof.passed or not plan.exact:
        return []
    return [f"a step as planned differs from the plain one by {proof.apart.worst}"]


def _swap(plan: Plan, ready: Ready, loss: str, result: dict[str, Any], reporter: Reporter) -> list[str]:
    from outsize.train.proving import prove_swap

    device, stride_px = ready.settings.device, ready.halo.stride_px
    proof = prove_swap(plan, ready.model, ready.card, loss=loss, stride_px=stride_px, device=device)
    result["swapped_equals_resident"] = proof.as_dict()
    reporter.say("verify", proof.text(), **result["swapped_equals_resident"])
    if proof.num_moved < proof.num_keys:
        text = (
            f"warning: {proof.num_keys - proof.num_moved} of the tensors planned to be moved did not come up"
        )
        reporter.say("warning", text, num_moved=proof.num_moved, num_keys=proof.num_keys)
    if proof.passed:
        return []
    return [f"a swapped step differs from the resident one by {proof.apart.worst}"]


def _any_scene(run: RunFolder) -> Path:
    from outsize.data.recall import recall_images

    held = read_json(run.split, "train")
    return recall_images(run.split, next(split for split in ("test", "val", "train") if held[split]))[0]
