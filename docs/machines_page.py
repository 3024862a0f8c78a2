"""Writes docs/machines.md from the catalogue itself; a test keeps the page true.

python docs/machines_page.py > docs/machines.md
"""

from __future__ import annotations

from outsize.plan.machines import CATALOGUE, CONTEXT_BYTES, GB, GIB, SHARES, TERA, GpuSpec

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

An operation takes the longer of `flops / (rate x share)` and `bytes / (bandwidth x share)`, and {launch_us:.0f} us to
start. Nothing reaches its peak; these are the shares that are counted on. Of measured rates more is reached, because
a measurement falls short of the peak too.

| rates | fp32 | tf32 | fp16 | bf16 | memory |
|---|---|---|---|---|---|
"""
_VISIBLE = "- visible memory: totals in PyTorch's out-of-memory messages in public issues, where not said otherwise.\n"


def page() -> str:
    """Return the whole page."""
    hosts = [spec for spec in CATALOGUE if spec.host is not None]
    rates = [_ABOVE.format(context=CONTEXT_BYTES / 2**20), _table("GPUs", CATALOGUE)]
    shares = [
        f"| {origin} | {each.fp32} | {each.tf32} | {each.fp16} | {each.bf16} | {each.memory} |"
        for origin, each in SHARES.items()
    ]
    time = _TIME.format(launch_us=SHARES["published"].launch_s * 1e6) + "\n".join(shares) + "\n"
    sources = [f"- `{spec.name}`: {spec.source}." for spec in CATALOGUE]
    links = {f"- {spec.link}: {spec.link_source}.": None for spec in CATALOGUE}
    return "\n".join([*rates, _hosts(hosts), time, "## Sources\n", *sources, *links, _VISIBLE])


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
