"""Section about what training and prediction took of the machine."""

from __future__ import annotations

from outsize.report.gather import Story
from outsize.report.markup import Markup, Part, table
from outsize.report.parts import figure, section
from outsize.units import format_bytes


def show_usage(story: Story) -> Markup | None:
    """Return what training and prediction took of the machine."""
    if not story.usage:
        return None
    heads = ("", "s / image", "images", "at once", "GPU use", "GPU memory", "CPU load", "host memory")
    rows: list[list[Part]] = [
        [
            verb,
            figure(each["s_per_image"]),
            f"{each['num_images']:,}",
            each["images_per_device"],
            "–" if each["gpu_use"] is None else f"{100 * each['gpu_use']:.0f} %",
            "–" if each["gpu_bytes"] is None else format_bytes(each["gpu_bytes"]),
            f"{each['cpu_load']:.2f}",
            format_bytes(each["host_bytes"]),
        ]
        for verb, each in story.usage.items()
    ]
    devices = ", ".join(dict.fromkeys(each["device"] for each in story.usage.values()))
    return section(
        "What it took of the machine", table(heads, rows), note=f"{devices}; load is that of all cores."
    )
