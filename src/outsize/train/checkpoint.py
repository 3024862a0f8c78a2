"""The state that a resumed training needs: weights, the optimizer's tensors, and where it stands, as one file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from outsize.card import fill_in, read_tensors, refuse_bad, weights_of, write_tensors
from outsize.errors import RunError, explain
from outsize.files.trees import json_tree
from outsize.runs import as_written, output_errors, write_beside


def save_state(
    path: Path, model: nn.Module, optimizer: Mapping[str, Tensor], position: Mapping[str, Any]
) -> None:
    """Write all that training needs to go on from this very step, as one file: it is whole or not there.

    The state before it stays beside it until this one is known to be good.
    """
    tensors = {f"model.{name}": value for name, value in weights_of(model).items()}
    tensors |= {f"optimizer.{name}": value.detach().cpu().contiguous() for name, value in optimizer.items()}
    with write_beside(path) as temporary:
        write_tensors(temporary, tensors, {"position": json.dumps(position)})
        if path.exists():
            _link(path, earlier(path))


def earlier(state: Path) -> Path:
    """Return where the state before a state is kept."""
    return state.with_name(f"{state.stem}-before{state.suffix}")


def settle_state(path: Path, *, is_good: bool) -> None:
    """Let go of the state before one that is good, and put it in the place of one that is not."""
    before = earlier(path)
    with output_errors(path):
        if is_good:
            before.unlink(missing_ok=True)
        elif before.exists():
            before.replace(path)
        else:
            path.unlink(missing_ok=True)


def saved_step(path: Path) -> int | None:
    """Return the step of a saved state; None where there is none."""
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        return int(json.loads(file.metadata()["position"])["total_steps"])


def _link(path: Path, other: Path) -> None:
    """Give a file another name besides; where a disk knows no such thing, copy it."""
    with write_beside(other) as temporary:
        temporary.unlink()
        try:
            temporary.hardlink_to(path)
        except OSError:
            shutil.copyfile(path, temporary)


def load_state(path: Path, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Fill in the model's weights and return the optimizer's tensors and the position."""
    tensors, header = read_tensors(path)
    fill_in(model, _under("model.", tensors), path)
    remedy = (
        "train with --overwrite and a lower train.lr; train.init may begin from the best weights of this run"
    )
    refuse_bad(model, path, remedy)
    if "position" not in header:
        remedy = "train with --overwrite"
        raise RunError(explain(f"{path} is no training state", "no position", "a position", remedy))
    with as_written(path, "train"):
        position = json_tree(header["position"])
        if not isinstance(position, dict):
            raise TypeError(f"a JSON {type(position).__name__} for the position")
    return _under("optimizer.", tensors), position


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
