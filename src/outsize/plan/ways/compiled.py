"""Which modules to compile."""

from __future__ import annotations

from collections import Counter

from outsize.plan.step import StepFacts
from outsize.plan.ways.blocks import lies_in, outward

_LARGEST_SHARE = (
    1 / 8
)  # of all saved bytes; more in one piece takes long to compile and is freed late in backward


def blocks_to_compile(facts: StepFacts) -> tuple[str, ...]:
    """Return the outermost modules of several layers, none of which keeps a large share of all that is saved.

    One that keeps more is taken apart, if it consists of such modules, and else compiled all the same. The model
    itself is no block: its blocks give their memory back one by one.
    """
    size_bytes = {each.index: each.size_bytes for each in facts.storages}
    kept_bytes: Counter[str] = Counter()
    for storage, module in {each.storage: each.key[0] for each in facts.saved}.items():
        for path in outward(module):
            kept_bytes[path] += size_bytes[storage]
    forward = [op.module for op in facts.ops if not op.backward and op.module]
    layers: dict[str, set[str]] = {}
    num_ops: Counter[str] = Counter()
    for module in forward:
        for path in outward(module):
            layers.setdefault(path, set()).add(module)
            num_ops[path] += 1
    several = {path for path in facts.modules if path and len(layers.get(path, ())) > 1}

    def is_apart(path: str) -> bool:
        """Whether it is large, and mostly made of modules that can be compiled in its place."""
        inside = [each for each in several if each != path and lies_in(each, path)]
        covered = sum(1 for module in forward if lies_in(module, *inside))
        return kept_bytes[path] > _LARGEST_SHARE * kept_bytes[""] and 2 * covered > num_ops[path]

    whole = {path for path in several if not is_apart(path)}
    # of modules that lie in one another the outermost, unless it is one that was taken apart
    return tuple(
        path
        for path in facts.modules
        if path in whole and not any(each in whole for each in outward(path)[1:])
    )
