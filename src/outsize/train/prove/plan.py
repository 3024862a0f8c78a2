"""All that is tried of a training's plan, each strategy in turn: what is said, and what verify.json keeps of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from outsize.errors import PlanError
from outsize.plan.plan import Plan
from outsize.train.prove import claims as of
from outsize.train.prove.proofs import StepProof, SwapProof
from outsize.train.prove.steps import changes_numbers, prove_step, prove_swap


@dataclass(frozen=True)
class Finding:
    """One thing that was found, or is to be said meanwhile."""

    text: str
    details: Mapping[str, Any] = field(default_factory=dict)
    kept_as: str | None = None  # its key in verify.json
    failure: str = ""
    is_warning: bool = False


def prove_plan(plan: Plan, ground: of.ProvingGround) -> Iterator[Finding]:
    """Try what a plan does, and say of each strategy of it whether that proves it; the claims come last."""
    claims = []
    if plan.compile is not None:
        yield Finding(f"compiling {len(plan.compile.paths)} blocks to compare them: this takes a while")
        missing = of.of_compile(ground.device)
        if missing is not None:
            claims.append(missing)
            plan = replace(plan, compile=None)
    if changes_numbers(plan):
        try:
            proof: StepProof | None = prove_step(plan, **ground.given())
        except PlanError as error:
            if plan.compile is None:
                raise
            claims.append(of.not_compiled(str(error)))
            plan = replace(plan, compile=None)
            proof = prove_step(plan, **ground.given()) if changes_numbers(plan) else None
        if proof is not None:
            yield from _step(proof)
            claims += of.of_step(plan, proof, ground)
    if plan.swap is not None:
        swap = prove_swap(plan, **ground.given())
        yield from _swap(swap)
        claims.append(of.of_swap(swap, ground.device.type))
    others = [] if plan.fuse is None else [of.of_fuse(plan, ground)]
    others += of.of_recording(plan, ground) if plan.graph or plan.paged else []
    for claim in claims:  # those that failed have failed above, with their figures
        yield Finding(claim.text(), claim.as_dict(), "strategies")
    for claim in others:
        yield Finding(claim.text(), claim.as_dict(), "strategies", claim.text() if claim.failed else "")


def _step(proof: StepProof) -> Iterator[Finding]:
    differs = f"a step as planned differs from the plain one by {proof.apart.worst}"
    failure = "" if proof.passed or not proof.exact else differs
    yield Finding(proof.text(), proof.as_dict(), "planned_step", failure)
    # double precision makes no casts, so a plan for bf16 may name some that are not there
    for missed, how in ((proof.unmet, "did not appear"), (proof.refused, "had to be kept")):
        if missed:
            text = f"warning: {len(missed)} of the tensors planned to be recomputed {how}: {'; '.join(missed[:3])}"
            yield Finding(text, {"tensors": missed}, is_warning=True)


def _swap(proof: SwapProof) -> Iterator[Finding]:
    failure = "" if proof.passed else f"a swapped step differs from the resident one by {proof.apart.worst}"
    yield Finding(proof.text(), proof.as_dict(), "swapped_equals_resident", failure)
    if proof.num_moved < proof.num_keys:
        text = (
            f"warning: {proof.num_keys - proof.num_moved} of the tensors planned to be swapped did not appear"
        )
        yield Finding(text, {"num_moved": proof.num_moved, "num_keys": proof.num_keys}, is_warning=True)
