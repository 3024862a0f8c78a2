"""Finds the module that a plan names."""

from __future__ import annotations

from torch import nn

from outsize.errors import PlanError, explain


def find_module(model: nn.Module, path: str, purpose: str) -> nn.Module:
    """Return the module at a path; refuse a plan that was made for another model. `purpose` is such as "compiled"."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        names = [name for name, _ in model.named_modules()]
    near = [name for name in names if name.endswith(path.rpartition(".")[2])][:3]
    raise PlanError(
        explain(
            f"a module to be {purpose} is not in the model",
            repr(path),
            "the path of a module" + (f" such as {', '.join(near)}" if near else ""),
            "plan again for this model",
        )
    )
