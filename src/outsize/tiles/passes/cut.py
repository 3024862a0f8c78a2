"""The cheapest place to cut a graph in two: what is kept is what one side makes and the other reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from math import inf

_SOURCE, _SINK = -1, -2
_Edges = dict[int, dict[int, float]]


def cheapest_cut(
    nodes: Sequence[int],
    inputs: Mapping[int, Sequence[int]],
    cost: Mapping[int, float],
    first: Collection[int],
    second: Collection[int],
) -> set[int]:
    """Return the nodes on the first side, those of `first` and what they need among them, none of `second`.

    A node is paid for where it is on the first side and one that reads it on the second: the cut of least cost, by the
    largest flow. Among equal ones the first side is as large as can be: then no work is put off for nothing.

        node ---cost---> its output ---never---> whoever reads it
             <--never--- whoever reads it        (what is read is made no later)
    """
    settled = _with_ancestors(first, inputs)
    edges: _Edges = {_SOURCE: {}, _SINK: {}}
    outputs = {node: number for number, node in enumerate(nodes, start=max(nodes, default=0) + 1)}
    name = {node: _SOURCE if node in settled else _SINK if node in second else node for node in nodes}
    for node in nodes:
        if name[node] != _SINK:
            _add(edges, name[node], outputs[node], cost[node])
        for each in inputs[node]:
            if name[each] != _SINK:
                _add(edges, outputs[each], name[node], inf)
            _add(edges, name[node], name[each], inf)
    _fill(edges)
    reaches = _reaching_sink(edges)
    return {node for node in nodes if name[node] not in reaches}


def _with_ancestors(nodes: Collection[int], inputs: Mapping[int, Sequence[int]]) -> set[int]:
    found, todo = set(), list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += inputs[node]
    return found


def _add(edges: _Edges, start: int, end: int, room: float) -> None:
    """Add an edge, with the one back that a flow makes room on."""
    if start in (end, _SINK) or end == _SOURCE:
        return
    out = edges.setdefault(start, {})
    out[end] = out.get(end, 0.0) + room
    edges.setdefault(end, {}).setdefault(start, 0.0)


def _fill(edges: _Edges) -> None:
    """Push flow along shortest ways from source to sink until none has room; what is left is the room that remains."""
    while True:
        came_from = {_SOURCE: _SOURCE}
        queue = deque([_SOURCE])
        while queue and _SINK not in came_from:
            node = queue.popleft()
            for end, room in edges[node].items():
                if room > 0 and end not in came_from:
                    came_from[end] = node
                    queue.append(end)
        if _SINK not in came_from:
            return
        way, node = [], _SINK
        while node != _SOURCE:
            way.append((came_from[node], node))
            node = came_from[node]
        room = min(edges[start][end] for start, end in way)
        if room == inf:  # what must be made first needs what can only be made second: no cut parts them
            raise AssertionError(way)
        for start, end in way:
            edges[start][end] -= room
            edges[end][start] += room


def _reaching_sink(edges: _Edges) -> set[int]:
    """Return the nodes from which there is room to the sink."""
    back: dict[int, list[int]] = {}
    for start, ends in edges.items():
        for end, room in ends.items():
            if room > 0:
                back.setdefault(end, []).append(start)
    found, todo = {_SINK}, [_SINK]
    while todo:
        for start in back.get(todo.pop(), ()):
            if start not in found:
                found.add(start)
                todo.append(start)
    return found
