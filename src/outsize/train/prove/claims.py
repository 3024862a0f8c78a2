"""What `verify` says of each strategy of a training's plan: proved on this machine or not, why, what would prove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from outsize.plan.plan import Plan
from outsize.train.prove.proofs import StepProof, SwapProof
from outsize.train.prove.steps import TOLERANCE, make_trial, shrunk

if TYPE_CHECKING:
    import torch
    from torch import nn

    from outsize.card import Card
    from outsize.measure.apart import Apart
    from outsize.train.prove.steps import StepTrial

# What differs between a fused layer and torch's is the order of sums: a few times the rounding that torch's own has
# against double precision. Below the least, a network is so small that there is hardly any.
_TIMES_ROUNDING, _LEAST_TOLERANCE = 4.0, 1e-4
_SETTINGS = {  # of a plan that one step as planned proves, by their names for a person
    "compile": "compile",
    "recompute": "recompute",
    "tiles": "tiles",
    "micro_batches": "micro-batches",
    "offload": "weights on the host",
}
_ON_A_GPU = "run `outsize verify` on the GPU that trains"


@dataclass(frozen=True)
class Claim:
    """One strategy of a plan, and whether this machine shows that it changes nothing."""

    strategy: str
    proved: bool
    why: str  # by what it is proved, or why it is not
    needs: str = ""  # what would prove it
    failed: bool = False  # it was tried, and the answer is another

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def text(self) -> str:
        """Return one line for a person."""
        if self.failed:
            return f"{self.strategy}: NOT TRUE here: {self.why}"
        if self.proved:
            return f"{self.strategy}: proved here: {self.why}"
        return f"{self.strategy}: not proved here: {self.why}; to prove it, {self.needs}"


@dataclass(frozen=True)
class ProvingGround:
    """The model of a run, and where its plan is tried."""

    model: nn.Module
    card: Card
    loss: str
    stride_px: int
    device: torch.device

    def given(self) -> Mapping[str, Any]:
        """Return what all proofs of a plan are given besides it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def trial(self, plan: Plan, dtype: torch.dtype | None = None) -> tuple[Plan, StepTrial]:
        """Return a plan for a small window, and a step on one to try it, as prove_step does."""
        small, side_px = shrunk(plan, self.stride_px)
        given: dict[str, Any] = {"loss": self.loss, "device": self.device, "dtype": dtype}
        return small, make_trial(plan, self.model, self.card, side_px=side_px, **given)


def of_step(plan: Plan, proof: StepProof, ground: ProvingGround) -> list[Claim]:
    """Say of each strategy in a step as planned whether the comparison with the plain step proves it.

    Where an approximate plan is apart from the plain step, what does not cut the step is compared with the step that
    lacks it alone.
    """
    names = {name: text for name, text in _SETTINGS.items() if getattr(plan, name) is not None}
    found = []
    for name, text in names.items():
        if name == "recompute" and not proof.num_blocks and not proof.num_made:
            why = f"none of its {proof.num_keys} tensors came up in a step in float64, which makes no casts"
            found.append(Claim(text, False, why, "train with train.precision = 'fp32', and verify that run"))
        elif proof.passed:
            why = f"a step as planned is the plain one, float64: {proof.apart.text()} (tolerance {TOLERANCE:.0e})"
            found.append(Claim(text, True, why))
        elif plan.exact:
            found.append(Claim(text, False, f"a step as planned differs by {proof.apart.worst}", failed=True))
        elif name in ("tiles", "micro_batches"):
            why = f"the plan is approximate: its step differs by {proof.apart.worst}"
            needs = "plan without limits.allow_approximate, or with norms that look across no parts"
            found.append(Claim(text, False, why, needs))
        else:
            nothing: dict[str, Any] = {name: None}
            without = replace(plan, **nothing)
            far = _apart(plan, without, ground)
            found.append(
                _compared(
                    text, far, TOLERANCE, f"the step with it is the step without, float64: {far.text()}"
                )
            )
    return found


def of_swap(proof: SwapProof, kind: str) -> Claim:
    """Say whether moved tensors came back as they were."""
    if proof.num_moved == 0:
        why = f"none of its {proof.num_keys} tensors came up in a step in float64"
        return Claim("swap", False, why, "train with train.precision = 'fp32', and verify that run")
    detail = f"{proof.apart.text()}, {proof.num_moved} tensors moved"
    if not proof.passed:
        return Claim("swap", False, f"a step that moves differs: {detail}", failed=True)
    streams = (
        "" if kind == "cuda" else "; by copies of a CPU: that a GPU's streams wait for each other needs a GPU"
    )
    return Claim("swap", True, f"a step that moves is the resident one: {detail}{streams}")


def of_compile(device: torch.device) -> Claim | None:
    """Return why nothing can be compiled on a device, if that is so."""
    if device.type != "cpu":
        return None
    from outsize.strategies.compiled import missing_compiler

    missing = missing_compiler()
    if missing is None:
        return None
    return Claim("compile", False, missing, "install a C++ compiler (g++), or verify where there is one")


def not_compiled(why: str) -> Claim:
    """Say that torch.compile itself failed."""
    return Claim("compile", False, why, "verify on the machine that trains")


def of_fuse(plan: Plan, ground: ProvingGround) -> Claim:
    """Compare a step of fused layers with one of torch's, both in float32, the precision that the kernels take.

    Both are compared with the step in float64, for which there are no kernels: fused layers may be as far from it as
    a few times what torch's own are. Without a GPU layers run by the same formulas in torch's operations, which shows
    that they are right, and says nothing of the kernels.
    """
    import torch

    from outsize.measure.apart import apart
    from outsize.strategies.kernels import fusing, standing_in

    on_gpu = ground.device.type == "cuda"
    if on_gpu and not fusing("cuda"):
        return Claim("fuse", False, "Triton builds no kernels here", "install triton and a C compiler")
    small, exact = ground.trial(plan.plain())
    _, rough = ground.trial(plan.plain(), torch.float32)
    devices = range(torch.cuda.device_count())
    with (
        torch.random.fork_rng(devices=devices),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False),
    ):
        plain = replace(small, fuse=None)
        wanted, usual = exact.run(plain)[0], rough.run(plain)[0]
        with standing_in():
            fused = rough.run(small)[0]
    own, far = apart(usual, wanted), apart(fused, wanted)
    tolerance = max(_LEAST_TOLERANCE, _TIMES_ROUNDING * own.largest)
    detail = f"{far.text()} from float64 (tolerance {tolerance:.0e}, torch's own differ by {own.largest:.0e})"
    if on_gpu or far.largest > tolerance:
        return _compared("fuse", far, tolerance, f"a step of fused layers in float32: {detail}")
    why = f"its kernels need a GPU (the same formulas in torch's operations: {detail})"
    return Claim("fuse", False, why, _ON_A_GPU)


def of_recording(plan: Plan, ground: ProvingGround) -> list[Claim]:
    """Compare the steps of a recorded plan with plain ones, on a GPU: the loss, gradients and buffers of a replay."""
    names = ["graph"] * (plan.graph or plan.paged) + ["pages"] * plan.paged
    if ground.device.type != "cuda":
        return [Claim(name, False, "a CPU records no CUDA graph", _ON_A_GPU) for name in names]
    if plan.paged:
        from outsize.strategies.cudagraph import why_not_paged

        missing = why_not_paged()
        if missing is not None:
            return [Claim(name, False, missing, "install a C compiler") for name in names]
    far = _recorded_apart(plan, ground)
    if isinstance(far, str):
        return [Claim(name, False, far, "verify with the GPU to itself") for name in names]
    how = "with its memory by pages " if plan.paged else ""
    why = f"a replayed step {how}is the plain one, float64: {far.text()} (tolerance {TOLERANCE:.0e})"
    return [_compared(name, far, TOLERANCE, why) for name in names]


def _recorded_apart(plan: Plan, ground: ProvingGround) -> Apart | str:
    """Return how far a replayed step is from a plain one after as many steps; or why it cannot be recorded."""
    import torch

    from outsize.measure.apart import apart
    from outsize.strategies.cudagraph import NUM_PLAIN

    small, trial = ground.trial(plan)
    recorded = replace(small, graph=True, paged=plan.paged, swap=None)  # moved ones are proved by themselves
    detail: list[str] = []
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            ours = trial.run_often(recorded, NUM_PLAIN + 2, detail.append)
        except torch.OutOfMemoryError as error:
            return str(error).partition("\n")[0]
        theirs = trial.run_often(small.plain(), NUM_PLAIN + 2, detail.append)
    return detail[0] if detail else apart(ours, theirs)


def _apart(plan: Plan, without: Plan, ground: ProvingGround) -> Apart:
    """Return how far two plans of a step are apart, in float64."""
    import torch

    from outsize.measure.apart import apart

    small, trial = ground.trial(replace(plan, swap=None))
    other, _ = ground.trial(replace(without, swap=None))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        ours, theirs = (trial.run(each)[0] for each in (small, other))
    return apart(ours, theirs)


def _compared(strategy: str, far: Apart, tolerance: float, why: str) -> Claim:
    if far.largest <= tolerance:
        return Claim(strategy, True, why)
    return Claim(strategy, False, f"{why}; most in {far.most}", failed=True)
