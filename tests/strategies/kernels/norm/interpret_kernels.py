"""Compares each kernel with what is written in torch, in Triton's interpreter; prints the number of comparisons."""

from __future__ import annotations

from itertools import product

import torch

from outsize.strategies.kernels.norm import fused
from outsize.strategies.kernels.norm import fused_kernels as kernels

SHAPES = [(2, 64, 5, 7), (3, 19, 4, 4), (2, 8, 1, 1), (5, 300), (2, 6, 3, 4, 5), (1, 3, 70, 70)]
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
WAYS = [
    (False, False, True),
    (False, True, True),
    (True, True, True),
    (True, False, False),
    (False, True, False),
]


def main() -> None:
    torch.manual_seed(0)
    num_compared = 0
    for number, (shape, last) in enumerate(product(SHAPES, (False, True))):
        dtype = (torch.float32, torch.bfloat16, torch.float16)[number % 3]
        kernels._MANY = 1 if number % 2 else 2**24  # also with several tiles for a program
        for add, relu, affine in WAYS:
            x, other = torch.randn(2, *shape).to(dtype)
            if last and x.dim() in LAYOUTS:
                x, other = (each.contiguous(memory_format=LAYOUTS[x.dim()]) for each in (x, other))
            mean, invstd, weight, bias = torch.randn(4, shape[1])
            rows = (mean, invstd.abs(), weight if affine else None, bias if affine else None)
            out = torch.full_like(x, torch.nan)
            added = other if add else None
            kernels.normed(x, rows, added, out, relu=relu)
            expected = fused.written(x, rows, added, relu=relu)
            # the interpreter cuts off where a GPU rounds to bfloat16; each of two roundings may differ
            apart = (
                {"rtol": 2**-6, "atol": 2**-4} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
            )
            torch.testing.assert_close(out, expected, **apart)
            num_compared += 1
    print(num_compared)


if __name__ == "__main__":
    main()
