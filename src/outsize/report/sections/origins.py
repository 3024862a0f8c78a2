"""Sections about how results came to be: where time went, the plan and its reasons, machine, versions, job."""

from __future__ import annotations

from typing import Any

from outsize.report.gather import Story
from outsize.report.markup import Markup, Part, pairs, table, tag
from outsize.report.parts import section
from outsize.report.split import split_steps
from outsize.units import format_bytes, format_count, format_pixels, format_seconds

_MANY = 3  # scenes that get a bar each
# one for each thing that time goes to, the same in every bar
_SHADES = {
    "computing": "#0b6e8f",
    "waiting for data": "#d9822b",
    "waiting for reads": "#d9822b",
    "copying": "#e3c04b",
    "swapping": "#8a4f9e",
    "validating": "#7fb069",
    "handing over": "#9aa3ad",
    "writing the map": "#d58fb4",
    "writing polygons": "#6b4a36",
}


def show_times(story: Story) -> Markup | None:
    """Return where time went, as bars: training first, then each predicted scene."""
    bars = [bar for bar in (_training(story), *_predictions(story)) if bar is not None]
    return section("Where time went", bars) if bars else None


def _training(story: Story) -> Markup | None:
    split = split_steps(story.steps, story.epochs)
    if split is None:
        return None
    parts = [(name, seconds * split.num_steps) for name, seconds in split.parts()]
    parts.append(("validating", sum(each.get("validate_s", 0.0) for each in story.epochs)))
    title = f"Training: {split.num_steps:,} steps of {format_seconds(split.step_s)} on average"
    return _bar(title, parts)


def _predictions(story: Story) -> list[Markup]:
    in_tiles = [each for each in story.predicted.get("scenes", ()) if "num_tiles" in each]
    scenes = [(each, _parts(each)) for each in in_tiles]
    bars = []
    for scene, parts in scenes:
        tiles = format_count(scene["num_tiles"], "tile")
        name = scene["scene"].rpartition("/")[2]
        bars.append(
            _bar(f"Predicting {name}: {format_pixels(scene['height'], scene['width'])}, {tiles}", parts)
        )
    if len(bars) <= _MANY:
        return bars
    every = [
        (each[0][0], sum(seconds for _, seconds in each))
        for each in zip(*(p for _, p in scenes), strict=True)
    ]
    folded = tag("details", tag("summary", "Each scene"), bars)
    return [_bar(f"Predicting {len(bars)} scenes", every), folded]


def _parts(scene: dict[str, Any]) -> list[tuple[str, float]]:
    reads_s, device_s = scene["waited_for_reads_s"], scene["waited_for_device_s"]
    return [
        ("waiting for reads", reads_s),
        ("computing", device_s),
        ("handing over", max(0.0, scene["tiles_s"] - reads_s - device_s)),
        ("writing the map", scene.get("cog_s", 0.0)),
        ("writing polygons", scene.get("polygons_s", 0.0)),
    ]


def _bar(title: str, parts: list[tuple[str, float]]) -> Markup:
    total_s = sum(seconds for _, seconds in parts) or 1.0
    pieces, names = [], []
    for name, seconds in parts:
        share = seconds / total_s
        shade = _SHADES[name]
        pieces.append(tag("span", style=f"width:{100 * share:.2f}%;background:{shade}"))
        text = f"{name} {format_seconds(seconds)} ({100 * share:.0f} %)"
        names.append(tag("li", tag("span", style=f"background:{shade}"), text))
    return tag(
        "div",
        tag("h4", f"{title}, {format_seconds(total_s)}"),
        tag("div", pieces, class_="times", role="img", aria_label=title),
        tag("ul", names, class_="legend"),
    )


def show_plan(story: Story) -> Markup | None:
    """Return what was decided, why, and what was rejected."""
    plans = {**story.plans}
    if story.predicted.get("plan"):
        plans["predict"] = story.predicted["plan"]
    if not plans:
        return None
    parts = []
    for name, plan in plans.items():
        tiles = plan.get("tiles") or {}
        parts += [
            tag("h4", name.capitalize()),
            pairs(
                [
                    ("at once", format_count(plan["batch"], "tile" if name == "predict" else "sample")),
                    (
                        "expected peak",
                        f"{format_bytes(plan['peak_bytes'])} of {format_bytes(plan['limit_bytes'])}",
                    ),
                    ("time of a step", _step_time(plan, story if name == "train" else None)),
                    ("answer", "exact" if plan["exact"] else "approximate"),
                    ("core", f"{tiles['core_px']} px" if tiles else None),
                    ("halo", _halo(tiles) if tiles else None),
                    *_settings(plan),
                ]
            ),
            tag("ul", [tag("li", why) for why in plan["why"]]),
        ]
        if plan["rejected"]:
            rows = [(each["what"], each["why"]) for each in plan["rejected"]]
            parts += [tag("p", "Rejected:"), table(("what", "why"), rows, class_="words")]
    return section("The plan and its reasons", parts, _proof(story.verified))


def _step_time(plan: dict[str, Any], trained: Story | None) -> str | None:
    """Say what a step was expected to take and, of a training, what it took."""
    expected_s = plan.get("step_s")
    split = split_steps(trained.steps, trained.epochs) if trained is not None else None
    if not expected_s:
        return None
    if split is None:
        return f"{format_seconds(expected_s)} expected"
    taken = f"{format_seconds(split.step_s)} taken on average"
    return f"{format_seconds(expected_s)} expected, {taken}: {split.step_s / expected_s:.2f} times as long"


def _halo(tiles: dict[str, Any]) -> str:
    before, after = tiles["halo_before_px"], tiles["halo_after_px"]
    return f"{before[0]}, {before[1]} px before and {after[0]}, {after[1]} px after (rows, columns)"


def _settings(plan: dict[str, Any]) -> list[tuple[str, Part]]:
    names = ("micro_batches", "pipeline", "replicate", "compile")
    found: list[tuple[str, Part]] = [
        (name.replace("_", " "), str(plan[name])) for name in names if plan.get(name) is not None
    ]
    spatial = plan.get("spatial")
    if spatial is not None:
        rows, cols = spatial["grid"]
        how = "borders exchanged" if spatial["halo_before_px"] is None else "halos recomputed"
        found.append(("pictures over ranks", f"{rows} x {cols}, {how}"))
    recompute = plan.get("recompute")
    if recompute is not None:
        counts = [(len(recompute["saved"]), "saved tensor"), (len(recompute["blocks"]), "block")]
        found.append(("computed again", ", ".join(format_count(num, what) for num, what in counts if num)))
    swap = plan.get("swap")
    if swap is not None:
        moved_bytes = sum(each["size_bytes"] for each in swap["moved"])
        some = f"{format_count(len(swap['moved']), 'saved tensor')}, {format_bytes(moved_bytes)}"
        everything = swap.get("ahead_bytes") is not None
        waits = f", {format_bytes(swap['pinned_bytes'])} of host memory"
        found.append(("moved to the host", ("everything" if everything else some) + waits))
    return found


def _proof(verified: dict[str, Any]) -> Markup | None:
    if not verified:
        return None
    proofs = [(f"tiled against whole, {name}", each) for name, each in verified["tiled_equals_whole"].items()]
    for key, name in (
        ("planned_step", "a step as planned against the plain one"),
        ("swapped_equals_resident", "swapped against resident"),
    ):
        each = verified.get(key)
        if each is not None:
            relative = max(each["loss"], each["gradients"], each["buffers"])
            proofs.append((name, {**each, "relative": relative}))
    rows = [
        (
            name,
            f"{each['relative']:.1e}" if each["relative"] else "0",
            f"{each['tolerance']:.0e}" if each["tolerance"] else "0",
            "yes" if each["passed"] else "NO",
        )
        for name, each in proofs
    ]
    heads = ("what", "largest difference, relative", "tolerance", "equal")
    claims = [
        (each["strategy"], "yes" if each["proved"] else "NOT TRUE" if each["failed"] else "no", each["why"])
        for each in verified.get("strategies", ())
    ]
    said = [table(("strategy of the plan", "proved", "by what, or why not"), claims)] if claims else []
    return tag("div", tag("h4", "Proof"), table(heads, rows), *said)


def show_machine(story: Story) -> Markup | None:
    """Return machine, versions and command, as the facts of the run have them."""
    facts = story.facts
    if not facts:
        return None
    machine = facts["machine"]
    versions = [f"{name} {version}" for name, version in facts.get("versions", {}).items()]
    about = pairs(
        [
            ("device", f"{machine['device']}: {machine['name']}"),
            (
                "memory",
                f"{format_bytes(machine['memory_bytes'])}, {format_bytes(machine['free_bytes'])} free",
            ),
            ("cores", machine["num_cores"]),
            ("command", tag("code", facts["command"]) if "command" in facts else None),
            ("in folder", tag("code", facts["folder"]) if "folder" in facts else None),
            ("begun", facts["when"].replace("T", " ") if "when" in facts else None),
            ("versions", " · ".join(versions) or None),
        ]
    )
    return section("Machine, versions, command", about)


def show_job(story: Story) -> Markup:
    """Return the job as it was run, folded away."""
    return tag("details", tag("summary", "The job (job.toml)"), tag("pre", tag("code", story.job_text)))
