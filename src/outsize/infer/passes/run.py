"""Runs a program pass by pass over the tiles of a picture; the last one gives the output, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from outsize.graph import INPUT, PARAMETER
from outsize.infer.passes.keep import Keep, cut
from outsize.infer.passes.operations import TileValues, run
from outsize.infer.passes.pools import Pool, Statistics
from outsize.infer.passes.program import Program
from outsize.tiles.passes import Role, TileWork, Walk
from outsize.tiles.window import Window

Read = Callable[[Window], Tensor]  # rows and columns of the picture -> what the model is given of them


class PassRun:
    """One picture going through a program: what is known of the whole so far, and the maps that are kept."""

    def __init__(
        self,
        program: Program,
        read: Read,
        keep: Keep,
        device: torch.device,
        *,
        cores_px: Sequence[int],
        bf16: bool = False,
    ) -> None:
        self._program, self._read, self._keep, self._device = program, read, keep, device
        self._laid, self._bf16 = program.laid, bf16
        # what is there as a whole: weights, pooled numbers, what follows from them
        self._held: dict[int, Any] = {}
        self._cores_px = tuple(cores_px)
        self._walk: Walk | None = None  # of the last pass, once the others are done

    @property
    def num_early(self) -> int:
        """How many tiles all passes but the last have."""
        walks = (
            Walk(self._laid, number, self._cores_px[number]) for number in range(self._laid.num_passes - 1)
        )
        return sum(walk.num_tiles for walk in walks)

    def early(self, advance: Callable[[int], object] | None = None) -> None:
        """Run all passes but the last; `advance` is called with the pass of each tile that is done."""
        last = self._laid.num_passes - 1
        for number in range(last):
            walk, pools = Walk(self._laid, number, self._cores_px[number]), dict[int, Any]()
            self._settle(number)
            for work in walk.works():
                if work.kept or work.pooled:
                    self._make(walk, work, pools)
                if advance is not None:
                    advance(number)
            self._finish(number, pools)
        self._settle(last)
        self._walk = Walk(self._laid, last, self._cores_px[last])

    def last(self, cores: Sequence[Window]) -> Iterator[tuple[Window, Tensor]]:
        """Yield each core with the model's output there; every core lies in one tile of the last pass."""
        if self._walk is None:
            self.early()
        assert self._walk is not None
        core_px, output = self._cores_px[-1], self._laid.output
        for core in cores:
            work = self._walk.work(core.row // core_px, core.col // core_px)
            values = self._make(self._walk, work, {})
            yield core, values[output][(..., *core.within(work.regions[output]).slices)]

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with (
            torch.inference_mode(),
            torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16),
        ):
            yield

    def _make(self, walk: Walk, work: TileWork, pools: dict[int, Any]) -> dict[int, Any]:
        """Run one tile: read, compute, keep, and add to what is pooled; what is not read again is let go."""
        laid, graph = self._laid, self._laid.graph
        values = dict(self._held)
        uses = self._uses(walk)
        at = TileValues(self._program, work.regions, values, self._device)
        for index, region in work.regions.items():
            if graph.ops[index].kind == INPUT:
                values[index] = self._read(region)
            elif laid.pass_of[index] < walk.number:
                values[index] = self._keep.read(index, laid.map(index), region, self._device)
        for index in walk.made:
            if index not in work.regions:
                continue
            with self._computing():
                values[index] = run(index, at)
            if index in work.kept:
                own = work.kept[index].within(work.regions[index])
                part = cut(values[index], laid.map(index), own)
                self._keep.write(graph.ops[index], laid.map(index), work.kept[index], part)
            for each in {*graph.ops[index].inputs}:
                uses[each] = uses.get(each, 0) - 1
                if uses[each] == 0:
                    values.pop(each, None)
        for index, window in work.pooled.items():
            source = laid.maps_of(index)[0]
            own = window.within(work.regions[source])
            part = cut(values[source], laid.map(source), own)
            pools.setdefault(index, self._new_pool(index)).add(part, window)
        return values

    def _uses(self, walk: Walk) -> dict[int, int]:
        """Count how often each map is read in a pass; one that is pooled or wanted is read once more, at the end."""
        graph = self._laid.graph
        made = set(walk.made)
        uses: dict[int, int] = {}
        for index in made:
            for each in {*graph.ops[index].inputs}:
                if self._laid.parts[each].map is not None:
                    uses[each] = uses.get(each, 0) + 1
        lasting = [self._laid.maps_of(index)[0] for index in self._laid.pooled[walk.number]]
        for index in (*lasting, self._laid.output):
            uses[index] = uses.get(index, 0) + 1
        return uses

    def _settle(self, number: int) -> None:
        """Compute what is there as a whole from the beginning of a pass on."""
        laid = self._laid
        place = TileValues(self._program, {}, self._held, self._device)
        for index, part in laid.parts.items():
            if part.role not in (Role.PLAIN, Role.WHOLE) or laid.pass_of[index] != number:
                continue
            if laid.graph.ops[index].kind == PARAMETER:
                self._held[index] = self._program.given(index, self._device)
                continue
            whole = [each for each in laid.graph.ops[index].inputs if laid.parts[each].map is not None]
            for each in whole:
                self._held[each] = self._whole(each)
            with self._computing():
                self._held[index] = run(index, place)
            for each in whole:
                del self._held[each]

    def _whole(self, index: int) -> Tensor:
        if self._laid.graph.ops[index].kind == INPUT:
            return self._read(Window(0, 0, *self._laid.size))
        return self._keep.read(index, self._laid.map(index), None, self._device)

    def _new_pool(self, index: int) -> Pool | Statistics:
        op, settings = self._laid.graph.ops[index], self._program.arguments(index)
        if self._laid.parts[index].role is Role.NORM:
            return Statistics(op.shape[1] if op.kind == "instance_norm" else int(settings["num_groups"]))
        settings["several"] = isinstance(self._program.nodes[index].meta["val"], tuple)
        return Pool(op, self._laid.map(self._laid.maps_of(index)[0]), settings)

    def _finish(self, number: int, pools: dict[int, Any]) -> None:
        """Turn what was added up into numbers, and let go of what no later pass reads."""
        laid = self._laid
        for index, pool in pools.items():
            if laid.parts[index].role is Role.NORM:
                eps = float(self._program.arguments(index)["eps"])
                self._held[index] = pool.result(laid.graph.ops[index].shape[1], eps)
            else:
                self._held[index] = pool.result(_dtype(self._program.nodes[index].meta["val"]))
        for index in list(self._held):
            norms = laid.parts[index].role is Role.NORM
            if (laid.pass_of[index] if norms else laid.last_pass.get(index, 0)) <= number:
                del self._held[index]
        for index in laid.parts:
            if laid.last_pass.get(index, 0) <= number:
                self._keep.drop(index)


def _dtype(value: Any) -> torch.dtype:
    tensor = value[0] if isinstance(value, tuple) else value
    return tensor.dtype  # type: ignore[no-any-return]
