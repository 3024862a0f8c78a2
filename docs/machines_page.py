"""Writes docs/machines.md from the catalogue itself; a test keeps the page true.

python docs/machines_page.py > docs/machines.md
"""

from __future__ import annotations

from outsize.plan import times
from outsize.plan.machines import CATALOGUE, CONTEXT_BYTES, GB, GIB, TERA, GpuSpec

_ABOVE = """# Machines by name

`outsize plan --gpu NAME` plans for a machine that is not here. Names are read without regard to case, maker and
hyphens: `v100-16`, `V100 16GB` and `Tesla V100-SXM2-16GB` are one. A machine that is here is measured instead, once.

Rates are what vendors publish, without sparsity. Links are what pinned copies reached, one direction, in GB/s: to
the device, to the host, and for each GPU while all GPUs of the host copy. A dash stands for what is not known, or
not there: a precision without units of its own is computed in float32 or emulated.

Visible memory is what a program is told to be there; usable is what {context:.0f} MiB for the process's own context
leave. Both are replaced by the truth where the card is at hand.
"""
_TIME = """## From rates to time

The host calls operations one by one, and a GPU works them off: a step takes as long as the slower of the two.

A kernel takes `bytes x passes / (bandwidth x {memory})`, arithmetic `flops / (rate x share)` besides, and
{kernel_us:.0f} us more. Nothing reaches its peak. The shares of tf32 and bf16 and the passes were fitted to kernels of
U-Net, WiderResNet-38 and, but for the shares, DeepLabV3+, on one H200 (torch 2.11, cuDNN 9.19); fp16 is taken to be as
bf16, fp32 is a guess, and no other GPU was looked at. DeepLabV3+'s own convolutions take up to 1.8 times as long as
this says. Where rates are measured, what a measurement itself loses of the peak ({measured_arithmetic} of arithmetic
and {measured_memory} of bandwidth are reached) is not lost twice.

| share of the peak | fp32 | tf32 | fp16 | bf16 |
|---|---|---|---|---|
{shares}

| passes over the bytes read and written | 4-byte numbers | 2-byte numbers |
|---|---|---|
{passes}
| all others | 1 | 1 |

The host takes {host_us:.0f} us to call a small operation: that is the median of the one server measured, where it
went from 14 to 25 us; on a machine that is here it is measured. Convolutions count as {convolution:.0f} calls, their
gradients as {gradient:.0f}, operations on all weights at once as {foreach:.0f}, views as none. A tensor that is made
again costs the host {remade} calls besides its operations, one in a block under checkpoint {checkpointed:.0f}.

On a GPU that is here a few real steps of the job are run before it is planned, and replace all this: for each class of
operation the time of its kernels over the modelled one, the host's time for a call, and how much of the memory
that torch holds is filled by tensors. They are remembered for the next plan of the same model and size,
unless others were at work on the GPU meanwhile: then all of it is good for this plan only, and a warning says so.

"""
_VISIBLE = "- visible memory: totals in PyTorch's out-of-memory messages in public issues, where not said otherwise.\n"


def page() -> str:
    """Return the whole page."""
    hosts = [spec for spec in CATALOGUE if spec.host is not None]
    rates = [_ABOVE.format(context=CONTEXT_BYTES / 2**20), _table("GPUs", CATALOGUE)]
    sources = [f"- `{spec.name}`: {spec.source}." for spec in CATALOGUE]
    links = {f"- {spec.link}: {spec.link_source}.": None for spec in CATALOGUE}
    return "\n".join([*rates, _hosts(hosts), _time(), "## Sources\n", *sources, *links, _VISIBLE])


def _time() -> str:
    ways = {"forward": times.FORWARD, "backward": times.BACKWARD}
    shares = [f"| {name} | {' | '.join(map(str, each.values()))} |" for name, each in ways.items()]
    passes = [f"| `{kind}` | {single:g} | {half:g} |" for kind, (single, half) in times.PASSES.items()]
    return _TIME.format(
        memory=times.MEMORY,
        kernel_us=times.KERNEL_S * 1e6,
        measured_arithmetic=times.MEASURED["arithmetic"],
        measured_memory=times.MEASURED["memory"],
        shares="\n".join(shares),
        passes="\n".join(passes),
        host_us=times.HOST_OP_S * 1e6,
        convolution=times.CONVOLUTION_CALLS,
        gradient=times.GRADIENT_CALLS,
        foreach=times.FOREACH_CALLS,
        remade=times.REMADE_CALLS,
        checkpointed=times.CHECKPOINTED_CALLS,
    )


def _table(title: str, specs: tuple[GpuSpec, ...]) -> str:
    lines = [
        f"## {title}\n",
        "| name | GPU | GiB sold | visible | usable | TFLOPS fp32 | tf32 | fp16 | bf16 | memory, GB/s | link | GB/s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for spec in specs:
        rates = spec.rates
        flops = (
            rates.fp32_flops_per_s,
            rates.tf32_flops_per_s,
            rates.fp16_flops_per_s,
            rates.bf16_flops_per_s,
        )
        link = (rates.to_device_bytes_per_s, rates.to_host_bytes_per_s, rates.crowded_bytes_per_s)
        cells = [
            f"`{spec.name}`",
            spec.title,
            *(f"{size / GIB:.4g}" for size in (spec.memory_bytes, spec.visible_bytes, spec.usable_bytes)),
            *(_number(each, TERA) for each in flops),
            _number(rates.memory_bytes_per_s, GB),
            spec.link,
            ", ".join(_number(each, GB) for each in link),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _hosts(specs: list[GpuSpec]) -> str:
    lines = ["## Hosts\n", "| name | host | GPUs | cores | memory, GiB |", "|---|---|---|---|---|"]
    for host in (spec.host for spec in specs if spec.host is not None):
        memory = f"{host.memory_bytes / GIB:.4g}"
        lines.append(f"| `{host.name}` | {host.title} | {host.num_gpus} | {host.num_cores} | {memory} |")
    return "\n".join(lines) + "\n"


def _number(value: float | None, unit: int) -> str:
    return "-" if value is None else f"{value / unit:.10g}"


if __name__ == "__main__":
    print(page(), end="")
