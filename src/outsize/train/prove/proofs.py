"""What `verify` has to say about training: how far a step as planned is from another one, and whether that will do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outsize.measure.apart import Apart


@dataclass(frozen=True)
class StepProof:
    """A step as planned against the plain one, and what was met of the plan."""

    apart: Apart
    exact: bool  # what the plan says
    tolerance: float
    passed: bool
    num_tiles: int
    num_micro_batches: int
    num_blocks: int
    num_keys: int  # saved tensors that the plan wants recomputed
    num_moved_blocks: int  # whose weights come from the host
    num_compiled: int  # blocks that are
    unmet: tuple[str, ...]  # those of them that the step did not save
    refused: tuple[str, ...]  # those that it saved and had to keep

    @property
    def num_made(self) -> int:
        """Saved tensors that were recomputed."""
        return self.num_keys - len(self.unmet) - len(self.refused)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return _flat(self)

    def text(self) -> str:
        """Return one line for a person."""
        cuts = ((self.num_tiles, "tiles"), (self.num_micro_batches, "micro-batches"))
        parts = [f"{num} {name}" for num, name in cuts if num > 1]
        if self.num_blocks:
            parts.append(f"{self.num_blocks} blocks recomputed")
        if self.num_keys:
            parts.append(f"{self.num_made} of {self.num_keys} planned tensors recomputed")
        if self.num_compiled:
            parts.append(f"{self.num_compiled} blocks compiled")
        if self.num_moved_blocks:
            parts.append(f"weights of {self.num_moved_blocks} blocks on the host")
        verdict = "yes" if self.passed else "NO" if self.exact else "no, the plan is approximate"
        how = f"step as planned = plain, float64 ({', '.join(parts)})"
        return f"{how}: {self.apart.text()} (tolerance {self.tolerance:.0e}): {verdict}"


@dataclass(frozen=True)
class SwapProof:
    """A step that moves tensors to host memory against one that keeps them."""

    apart: Apart
    tolerance: float  # how far steps that keep all are from each other
    passed: bool
    num_keys: int  # tensors that the plan moves; 0: everything
    num_moved: int

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return _flat(self)

    def text(self) -> str:
        """Return one line for a person."""
        moved = f"{self.num_moved} of {self.num_keys} planned" if self.num_keys else f"all {self.num_moved}"
        how = f"swapped = resident, float64 ({moved} tensors moved)"
        apart = f"{self.apart.text()} (resident steps from each other: {self.tolerance:.2e})"
        return f"{how}: {apart}: {'yes' if self.passed else 'NO'}"


def _flat(proof: StepProof | SwapProof) -> dict[str, Any]:
    """Put the differences beside the rest, so that a file of proofs reads as one table."""
    tree = asdict(proof)
    return {**tree.pop("apart"), **tree}
