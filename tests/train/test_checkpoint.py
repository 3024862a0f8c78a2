"""The state of a training comes back as it was saved."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from outsize.models import build_model
from outsize.train.checkpoint import load_state, save_state


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = build_model("unet", num_classes=2, in_channels=2, levels=2, width=4, norm="batch")
    model(torch.randn(2, 2, 8, 8))  # batch norm has statistics of its own now
    return model


def _same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_state_comes_back(tmp_path: Path) -> None:
    path, model = tmp_path / "state.safetensors", _model()
    optimizer = {"0.step": torch.tensor(3.0), "0.exp_avg": torch.randn(4, 2, 3, 3)}
    save_state(path, model, optimizer, {"phase": 1, "best_score": 1 / 3})
    other = _model(seed=1)
    assert not _same(other, model)
    tensors, position = load_state(path, other)
    assert _same(other, model)
    assert position == {"phase": 1, "best_score": 1 / 3}
    assert tensors.keys() == optimizer.keys()
    assert all(torch.equal(tensors[key], optimizer[key]) for key in optimizer)
