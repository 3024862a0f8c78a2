"""What is said of a tensor that was changed in place after it was saved: its gradient would be wrong."""

from __future__ import annotations

from outsize.errors import ModelError, explain


def changed(module: str, saved: int, found: int) -> ModelError:
    """Return the error that tells of a tensor changed in place after it was saved."""
    return ModelError(
        explain(
            f"a tensor that backward of module '{module}' needs was changed in place after forward used it",
            f"version {found} of the tensor",
            f"version {saved}",
            "replace the in-place operation by its plain form, or give the training more memory, so that it is kept",
        )
    )
