"""Scenes over ranks: the tiles of a large one go to all of them, each small one to one of them as a whole.

tiles of a scene   0 1 2 3 4 5 ...   rank 0: 0 2 4   rank 1: 1 3 5    one store, which the owner finishes
small scenes       a b c d           rank 0: a c     rank 1: b d      each finished by its rank
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from outsize.infer.ready import Ready
from outsize.progress import Reporter
from outsize.ranks import ALONE, World
from outsize.raster.reading import SceneInfo
from outsize.units import format_count

Files = TypeVar("Files")
Scene = tuple[SceneInfo, Files]
Results = list[dict[str, Any]]


def over_ranks(
    world: World,
    ready: Ready,
    scenes: Sequence[Scene[Files]],
    predict: Callable[[Ready, Sequence[Scene[Files]]], Results],
    reporter: Reporter,
    *,
    spreads: bool,
    one_table: bool,
) -> Results:
    """Predict all scenes and return what was done, on the owner that of all ranks, in the order of the scenes.

    Where a prediction `spreads`, ranks share the tiles of a scene that has enough of them; `one_table` of all scenes
    is one process's.
    """
    if world.is_alone:
        return predict(ready, scenes)
    shared = world.owners(lambda: _large(world, ready, scenes) if spreads else [])
    rest = [number for number in range(len(scenes)) if number not in shared]
    if rest and (one_table or len(rest) < world.size):
        of_rest = "all in one table" if one_table else "each as a whole"
        idle = world.size - (1 if one_table else len(rest))
        without = f"{format_count(idle, 'rank')} of {world.size} without work"
        text = f"{format_count(len(rest), 'scene')}, {of_rest}: {without}"
        reporter.say("ranks", text)
    done = predict(ready, [scenes[number] for number in shared]) if shared else []
    own = (rest if world.is_owner else []) if one_table else world.deal(rest)
    alone = replace(ready, settings=replace(ready.settings, world=ALONE))
    world.at(f"{format_count(len(own), 'scene')} of its own")
    with reporter.doing("predict", parallel=1 if one_table else min(world.size, max(1, len(rest)))):
        done += predict(alone, [scenes[number] for number in own]) if own else []
    world.at("the end of the others")
    gathered = world.gather(done)
    for rank, results in enumerate(gathered[1:], start=1):
        for each in results:
            reporter.say("predicted", f"{each['scene']}, by rank {rank}: {each['map']}", **each)
    by_scene = {each["scene"]: each for results in gathered for each in results}
    order = [str(info.path.resolve()) for info, _ in scenes]
    return sorted(
        by_scene.values(), key=lambda each: order.index(each["scene"]) if each["scene"] in order else 0
    )


def _large(world: World, ready: Ready, scenes: Sequence[Scene[Files]]) -> list[int]:
    """Return which scenes have a tile for each rank."""
    return [
        number
        for number, (info, _) in enumerate(scenes)
        if len(ready.tiling_of(info).cover(info.height, info.width)) >= world.size
    ]
