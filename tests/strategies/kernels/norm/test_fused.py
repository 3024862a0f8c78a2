"""Fused batch norm: what is written does as torch does, the kernels as what is written, and what if there are none."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from outsize.strategies.kernels.norm import fused

_INTERPRETED = Path(__file__).with_name("interpret_kernels.py")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("affine", [True, False])
def test_written_as_torch_does(dtype: torch.dtype, affine: bool) -> None:
    torch.manual_seed(0)
    x, other = torch.randn(2, 3, 6, 5, 5).to(dtype)
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    weight, bias = (torch.randn(6, dtype=wide) for _ in range(2)) if affine else (None, None)
    normed, mean, invstd = torch.ops.aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    rows = (mean, invstd, weight, bias)
    # one in the last place: torch's kernel for a CPU multiplies weight and deviation first
    apart = {"rtol": 2**-6, "atol": 2**-5} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(fused.normed(x, rows, None, relu=False), normed, **apart)
    torch.testing.assert_close(fused.normed(x, rows, None, relu=True), F.relu(normed), **apart)
    torch.testing.assert_close(fused.normed(x, rows, other, relu=True), F.relu(normed + other), **apart)


def test_kernels_do_what_is_written() -> None:
    """Runs the kernels in Triton's interpreter, in a process of its own because that is chosen at import."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    found = subprocess.run(
        [sys.executable, str(_INTERPRETED)], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    num_compared = int(found.stdout.split()[0])
    assert num_compared == 60


@pytest.mark.parametrize("missing", ["triton", "a compiler"])
def test_told_once_where_no_kernel_can_be_built(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def normed(*_: object, **__: object) -> None:
            raise RuntimeError("Failed to find C compiler.")

    ones = torch.ones
    monkeypatch.setattr(
        torch, "ones", lambda *size, device: ones(*size, device="meta" if device == "cuda" else device)
    )
    monkeypatch.setattr(fused, "_kernels", lambda: Broken)
    if missing == "triton":
        monkeypatch.setitem(sys.modules, "triton.errors", None)
    else:
        pytest.importorskip("triton")
    fused._builds.cache_clear()
    try:
        with pytest.warns(UserWarning, match="install triton" if missing == "triton" else "C compiler"):
            assert not fused.fusing("cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not fused.fusing("cuda")
    finally:
        fused._builds.cache_clear()
