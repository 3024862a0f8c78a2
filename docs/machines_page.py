"""Writes docs/machines.md from the catalogue itself; a test keeps the page true.

python docs/machines_page.py > docs/machines.md
"""

from __future__ import annotations

from outsize.plan import times
from outsize.plan.links import LINKS
from outsize.plan.machines import CATALOGUE, CONTEXT_BYTES, GB, GIB, TERA, GpuSpec

_ABOVE = """# Machines by name

`outsize plan --gpu NAME` plans for a machine from this list. Case, maker and hyphens in names do not matter:
`v100-16`, `V100 16GB` and `Tesla V100-SXM2-16GB` are the same. The machine outsize runs on is measured once instead.

Rates are what vendors publish, without sparsity. Links are what pinned copies reached, in one direction, in GB/s: to
the device, to the host, and for each GPU while all GPUs of the host copy. A dash means unknown or missing: a
precision without hardware units is computed in float32 or emulated.

Visible memory is what the driver reports; usable memory is what {context:.0f} MiB for the context of the process
leave. Where the card is at hand, both are measured.
"""
_TIME = """## From rates to time

The host launches operations one by one, and the GPU works through them: a step takes as long as the slower of the two.

A kernel takes `bytes x passes / (bandwidth x {memory})` for memory, `flops / (rate x share)` for arithmetic, and
{kernel_us:.0f} us on top. No kernel reaches its peak. The shares of tf32 and bf16 and the passes were fitted to kernels
of U-Net, WiderResNet-38 and, but for the shares, DeepLabV3+, on one H200 (torch 2.11, cuDNN 9.19); fp16 is taken to be
like bf16, fp32 is a guess, and no other GPU was measured. DeepLabV3+'s own convolutions take up to 1.8 times as long as
this says. A measurement of rates itself loses a part of the peak (it reaches {measured_arithmetic} of arithmetic and
{measured_memory} of bandwidth); measured rates are corrected for that.

| share of the peak | fp32 | tf32 | fp16 | bf16 |
|---|---|---|---|---|
{shares}

| passes over the bytes read and written | 4-byte numbers | 2-byte numbers |
|---|---|---|
{passes}
| all others | 1 | 1 |

The host takes {host_us:.0f} us to launch a small operation: the median of the one server measured, where it
varied from 14 to 25 us; on the machine at hand it is measured. Convolutions count as {convolution:.0f} calls, their
gradients as {gradient:.0f}, operations on all weights at once as {foreach:.0f}, views as none. A recomputed tensor
costs the host {remade} calls besides its operations, one in a block under checkpoint {checkpointed:.0f}.

On the GPU at hand, a few real steps of the job run before it is planned. Measurements then replace all of this: the
time of each class of operation relative to the model, the host's time for a call, and how much of the memory that
torch holds is filled by tensors. They are remembered for the next plan of the same model and size, unless other
processes used the GPU meanwhile: then they serve this plan only, and a warning says so.

"""
_VISIBLE = "- visible memory: totals in PyTorch's out-of-memory messages in public issues, where not said otherwise.\n"


def page() -> str:
    """Return the whole page."""
    hosts = [spec for spec in CATALOGUE if spec.host is not None]
    rates = [_ABOVE.format(context=CONTEXT_BYTES / 2**20), _table("GPUs", CATALOGUE)]
    sources = [f"- `{spec.name}`: {spec.source}." for spec in CATALOGUE]
    links = {f"- {spec.link}: {spec.link_source}.": None for spec in CATALOGUE}
    return "\n".join([*rates, _hosts(hosts), _links(), _time(), "## Sources\n", *sources, *links, _VISIBLE])


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


def _links() -> str:
    lines = [
        "## Links between GPUs\n",
        "GB/s in one direction, as reached and in theory. All GPUs of a host share its link to others.\n",
        "| name | link | of | GB/s | in theory | latency, us | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for spec in LINKS:
        rates = f"{_number(spec.bytes_per_s, GB)} | {_number(spec.theory_bytes_per_s, GB)}"
        kind = "one host" if spec.within == "host" else "hosts"
        latency = f"{spec.latency_s * 1e6:g}"
        lines.append(f"| `{spec.name}` | {spec.title} | {kind} | {rates} | {latency} | {spec.source} |")
    return "\n".join(lines) + "\n"


def _number(value: float | None, unit: int) -> str:
    return "-" if value is None else f"{value / unit:.10g}"


if __name__ == "__main__":
    print(page(), end="")
