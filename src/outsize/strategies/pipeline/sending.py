"""What each task of a pipeline sends, and to which rank; all ranks know it of all.

A value goes straight to each rank that reads it, a skip past the stages between: with the stream it would be sent once
for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outsize.strategies.pipeline.cutting import Cutout
from outsize.strategies.pipeline.draws import next_drawing
from outsize.strategies.pipeline.messages import Letter, Sent, Task


def sent_by(cutouts: Sequence[Cutout], ranks: Sequence[int]) -> Sent:
    """Return what tells the messages of a task; `cutouts` are of the micro-batches, `ranks` of the stages."""

    def sent(task: Task) -> Iterator[tuple[int, Letter]]:
        doing, stage, micro = task
        cutout, own = cutouts[micro], ranks[stage]
        if doing == "forward":
            after = next_drawing(cutout, stage) if cutout.programs[stage].draws else None
            if after is not None and ranks[after] != own:
                yield ranks[after], Letter("state", "", after, micro)
            for name in cutout.programs[stage].gives:
                for to in sorted({ranks[each] for each in cutout.streams[name].read} - {own}):
                    yield to, Letter("value", name, 0, micro)
        if doing == "backward":
            for taken in cutout.programs[stage].takes:
                stream = cutout.streams.get(taken.what) if taken.kind == "stream" else None
                if stream is not None and stream.layout.requires_grad and ranks[stream.made] != own:
                    yield ranks[stream.made], Letter("gradient", stream.name, stage, micro)

    return sent
