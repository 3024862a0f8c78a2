"""Modules whose answer in tiles is that of the whole picture, however they are written."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tests.measure.nets import BANDS, conv
from tests.measure.unsound import Make, net
from torch import Tensor, nn


def _unshuffled(x: Tensor, factor: int) -> Tensor:
    samples, bands, height, width = x.shape
    parts = x.view(samples, bands, height // factor, factor, width // factor, factor)
    return parts.permute(0, 1, 3, 5, 2, 4).reshape(samples, -1, height // factor, width // factor)


def _shuffled(x: Tensor, factor: int) -> Tensor:
    samples, bands, height, width = x.shape
    parts = x.view(samples, bands // factor**2, factor, factor, height, width)
    return parts.permute(0, 1, 4, 2, 5, 3).reshape(samples, -1, height * factor, width * factor)


def _windows(n: Any, x: Tensor) -> Tensor:
    """Attention in windows of 4 x 4 pixels, not shifted."""
    samples, bands, height, width = x.shape
    y = x.view(samples, bands, height // 4, 4, width // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, bands)
    y = F.scaled_dot_product_attention(y @ n.weight, y, y)
    y = y.view(samples, height // 4, width // 4, 4, 4, bands).permute(0, 5, 1, 3, 2, 4)
    return y.reshape(x.shape)


def _zero_channels(n: Any, x: Tensor) -> Tensor:
    none = torch.empty(len(x), 0, *x.shape[2:], dtype=x.dtype)
    return n.c(torch.cat([x, none], 1))


def _blur(n: Any, x: Tensor) -> Tensor:
    kernel = torch.ones(BANDS, 1, 3, 3, dtype=x.dtype) / 9
    y = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, stride=2, groups=BANDS)
    return F.interpolate(y, scale_factor=2) + x


def _filled(n: Any, x: Tensor) -> Tensor:
    """Zeros behind up to a multiple of 8, and taken off again."""
    height, width = x.shape[-2:]
    y = n.c(n.c(F.pad(x, (0, -width % 8, 0, -height % 8))))
    return y[..., :height, :width]


def _rms(n: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)


def _complex(n: Any, x: Tensor) -> Tensor:
    z = torch.view_as_complex(torch.stack([x, n.c(x)], -1))
    return torch.view_as_real(z * torch.exp(1j * z.real)).sum(-1) + z.abs()


def _folded(n: Any, x: Tensor) -> Tensor:
    y = F.unfold(x, 3, padding=1).transpose(1, 2) @ n.f.weight
    return y.transpose(1, 2).reshape(len(x), -1, *x.shape[2:])


def _patches(n: Any, x: Tensor) -> Tensor:
    return F.fold(F.unfold(x, 4, stride=4) * 2, x.shape[-2:], 4, stride=4)


def _per_pixel(n: Any, x: Tensor) -> Tensor:
    y = x.permute(0, 2, 3, 1)[..., None]
    return (y @ y.mT).softmax(-1).flatten(3).permute(0, 3, 1, 2)


def _quantised(n: Any, x: Tensor) -> Tensor:
    pixels = x.permute(0, 2, 3, 1)
    nearest = torch.cdist(pixels.flatten(0, 2), n.e.weight).argmin(-1)
    return n.e(nearest.view(pixels.shape[:3])).permute(0, 3, 1, 2) * x


def _squares_in_waves(_: Any, x: Tensor) -> Tensor:
    samples, bands, height, width = x.shape
    y = x.view(samples, bands, height // 8, 8, width // 8, 8).permute(0, 1, 2, 4, 3, 5)
    y = torch.fft.ifft2(torch.fft.fft2(y) * torch.linspace(0, 1, 8, dtype=x.dtype)).real
    return y.permute(0, 1, 2, 4, 3, 5).reshape(x.shape)


def _noted(n: Any, x: Tensor) -> Tensor:
    """Keeps its last features for whoever wants to look at them."""
    y = n.c(x)
    n.last = y.detach()
    return y * 2


def _cached(n: Any, x: Tensor) -> Tensor:
    """Makes a constant once."""
    if "kernel" not in n.known:
        n.known["kernel"] = torch.ones(BANDS, 1, 3, 3, dtype=x.dtype)
    return F.conv2d(x, torch.ones_like(n.known["kernel"], dtype=x.dtype), padding=1, groups=BANDS)


def _unpooled(n: Any, x: Tensor) -> Tensor:
    pooled, where = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(n.c(pooled), where, 2)


def _picked(n: Any, x: Tensor) -> Tensor:
    return n.e(x.argmax(1)).permute(0, 3, 1, 2)


def _rows_as_samples(n: Any, x: Tensor) -> Tensor:
    y = x.permute(0, 2, 1, 3).reshape(-1, BANDS, x.shape[-1])
    return n.c(y).view(len(x), x.shape[-2], BANDS, x.shape[-1]).permute(0, 2, 1, 3)


def _sr_attention(n: Any, x: Tensor) -> Tensor:
    """Every pixel attends to learnt tokens."""
    y = x.flatten(2).transpose(1, 2)
    keys = n.weight.expand(len(x), -1, -1)
    return F.scaled_dot_product_attention(y, keys, keys).transpose(1, 2).view(x.shape)


SOUND: dict[str, Make] = {
    "a convolution": net(lambda n, x: n.c(x), c=conv),
    "a skip of zero channels": net(_zero_channels, c=conv),
    "reflected": net(lambda n, x: n.c(x), c=lambda: conv(5, padding_mode="reflect")),
    "replicated": net(lambda n, x: n.c(x), c=lambda: conv(5, padding_mode="replicate")),
    "blur pool": net(_blur),
    "reflected and cropped": net(
        lambda n, x: n.c(F.pad(x, (6, 6, 6, 6), mode="reflect"))[..., 6:-6, 6:-6], c=conv
    ),
    "padded and cropped": net(lambda n, x: n.c(F.pad(x, (8, 8, 8, 8)))[..., 8:-8, 8:-8], c=lambda: conv(7)),
    "cropped and padded": net(lambda n, x: n.c(F.pad(x[..., 2:-3], (2, 3))), c=conv),
    "moved by three": net(lambda n, x: F.pad(x, (3, 0))[..., :-3] + F.pad(x, (0, 3))[..., 3:]),
    "valid convolutions": net(lambda n, x: n.c(n.c(F.pad(x, (4, 4, 4, 4)))), c=lambda: conv(5, padding=0)),
    "zeros behind to 8": net(_filled, c=lambda: conv(5)),
    "by matmul": net(lambda n, x: (x.permute(0, 2, 3, 1) @ n.weight).permute(0, 3, 1, 2)),
    "by matmul from the left": net(lambda n, x: (n.weight @ x.flatten(2)).view(x.shape)),
    "by einsum": net(lambda n, x: torch.einsum("bchw,dc->bdhw", x, n.weight)),
    "by linear": net(
        lambda n, x: n.f(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape),
        f=lambda: nn.Linear(4, 4),
    ),
    "by tensordot": net(lambda n, x: torch.tensordot(x, n.weight, ([1], [0])).permute(0, 3, 1, 2)),
    "by bmm": net(lambda n, x: torch.bmm(n.weight.expand(len(x), -1, -1), x.flatten(2)).view(x.shape)),
    "space to depth by view": net(
        lambda n, x: _shuffled(n.c(_unshuffled(x, 2)), 2), c=lambda: nn.Conv2d(16, 16, 3, padding=1)
    ),
    "space to depth by 3": net(lambda n, x: _shuffled(_unshuffled(x, 3).flip(1), 3)),
    "windows": net(_windows),
    "patches by fold": net(_patches),
    "convolution by unfold": net(_folded, f=lambda: nn.Linear(4, 36, bias=False)),
    "windows by unfold": net(lambda n, x: F.pad(x, (0, 2)).unfold(3, 3, 1).amax(-1)),
    "RMS norm": net(_rms),
    "RMS norm of torch": net(lambda n, x: F.rms_norm(x.permute(0, 2, 3, 1), (BANDS,)).permute(0, 3, 1, 2)),
    "layer norm over channels": net(
        lambda n, x: F.layer_norm(x.permute(0, 2, 3, 1), (BANDS,)).permute(0, 3, 1, 2)
    ),
    "group norm of each pixel": net(
        lambda n, x: (
            F.group_norm(x.permute(0, 2, 3, 1).reshape(-1, BANDS), 2)
            .view(len(x), *x.shape[2:], BANDS)
            .permute(0, 3, 1, 2)
        )
    ),
    "response norm": net(lambda n, x: F.local_response_norm(x, 3)),
    "GLU": net(lambda n, x: F.glu(n.c(x), 1), c=lambda: conv(out=8)),
    "one-hot": net(lambda n, x: F.one_hot(x.argmax(1), BANDS).permute(0, 3, 1, 2).to(x.dtype)),
    "looked up": net(_picked, e=lambda: nn.Embedding(BANDS, 5)),
    "the two largest": net(lambda n, x: x.topk(2, 1)[0]),
    "sorted channels": net(lambda n, x: x.sort(1, descending=True)[0]),
    "order of channels": net(lambda n, x: x.argsort(1).to(x.dtype)),
    "gathered channels": net(lambda n, x: x.gather(1, x.argsort(1))),
    "median of channels": net(lambda n, x: x.median(1, keepdim=True)[0]),
    "running sum of channels": net(lambda n, x: x.cumsum(1)),
    "cosine": net(lambda n, x: F.cosine_similarity(x, n.c(x), 1)[:, None], c=conv),
    "softmax over channels": net(lambda n, x: x.softmax(1)),
    "products of channels": net(_per_pixel),
    "by 1.5 and back": net(
        lambda n, x: F.interpolate(n.c(F.interpolate(x, scale_factor=1.5)), size=x.shape[-2:]), c=conv
    ),
    "bilinear by 3": net(
        lambda n, x: F.interpolate(n.c(x), scale_factor=3.0, mode="bilinear"), c=lambda: conv(3, stride=3)
    ),
    "bilinear by 1.5": net(
        lambda n, x: (
            F.avg_pool2d(F.interpolate(x, scale_factor=1.5, mode="bilinear"), 3, 3)
            .repeat_interleave(2, 2)
            .repeat_interleave(2, 3)
        )
    ),
    "stride 3": net(lambda n, x: F.interpolate(n.c(x), size=x.shape[-2:]), c=lambda: conv(3, stride=3)),
    "stride 6": net(
        lambda n, x: n.t(n.c(x)), c=lambda: conv(7, stride=6), t=lambda: nn.ConvTranspose2d(4, 4, 6, stride=6)
    ),
    "stride 5": net(
        lambda n, x: n.t(n.c(x)), c=lambda: conv(5, stride=5), t=lambda: nn.ConvTranspose2d(4, 4, 5, stride=5)
    ),
    "max-unpool": net(
        _unpooled,
        c=conv,
    ),
    "complex numbers": net(_complex, c=conv),
    "polar": net(lambda n, x: torch.polar(x.abs(), n.c(x)).real, c=conv),
    "Fourier over channels": net(lambda n, x: torch.fft.fft(x, dim=1).abs()),
    "zeros and ones": net(lambda n, x: x * torch.ones_like(x) + torch.zeros(x.shape[-2:])),
    "ones times weights": net(lambda n, x: x + torch.ones_like(x) * n.weight.sum(0).view(1, BANDS, 1, 1)),
    "constants over channels": net(lambda n, x: x * torch.linspace(0, 1, BANDS)[:, None, None]),
    "a fixed kernel": net(
        lambda n, x: F.conv2d(x, torch.arange(36.0, dtype=x.dtype).view(4, 1, 3, 3), padding=1, groups=4)
    ),
    "masked by the picture": net(lambda n, x: x.masked_fill(x > 0.5, 0.25).where(x < 2, 1.0)),
    "learnt tokens": net(_sr_attention),
    "rows as samples": net(_rows_as_samples, c=lambda: nn.Conv1d(4, 4, 3, padding=1)),
    "channels as depth": net(
        lambda n, x: n.c(x[:, None]).flatten(1, 2), c=lambda: nn.Conv3d(1, 2, 3, padding=1)
    ),
    "features kept to look at": net(_noted, c=conv),
    "a constant made once": net(_cached),
    "average without padding": net(lambda n, x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
    "local mean and deviation": net(
        lambda n, x: (x - F.avg_pool2d(x, 5, 1, 2)) / (F.avg_pool2d(x.square(), 5, 1, 2) + 1).sqrt()
    ),
    "antialiased halves": net(lambda n, x: F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bicubic")),
    "adaptive pooling to a half": net(
        lambda n, x: F.interpolate(
            F.adaptive_avg_pool2d(x, (x.shape[-2] // 2, x.shape[-1] // 2)), scale_factor=2
        )
    ),
    "largest pooling of everything at once": net(
        lambda n, x: F.lp_pool2d(x.abs(), 2, 3, 1)[..., :, :].new_zeros(()) + x
    ),
    "samples one by one": net(lambda n, x: torch.stack([n.c(each) for each in x]), c=conv),
    "vmapped": net(lambda n, x: torch.vmap(lambda each: n.c(each[None])[0])(x), c=conv),
    "seeded noise of a fixed shape": net(
        lambda n, x: x + torch.rand(BANDS, 1, 1, generator=torch.Generator().manual_seed(1))
    ),
    "nearest entries of a codebook": net(_quantised, e=lambda: nn.Embedding(16, BANDS)),
    "distances of samples' channels to rows": net(
        lambda n, x: torch.cdist(x.permute(0, 2, 3, 1), n.weight[None, None]).permute(0, 3, 1, 2)
    ),
    "ranges looked up": net(
        lambda n, x: n.e(torch.bucketize(x[:, 0].contiguous(), n.table[0, 0, :4, 0].to(x))).permute(
            0, 3, 1, 2
        ),
        e=lambda: nn.Embedding(5, BANDS),
    ),
    "Fourier in squares of 8": net(_squares_in_waves),
}
