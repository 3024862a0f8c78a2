"""What `outsize prepare` is to make of a job's raw files, as pieces of work.

[prepare] and what [data] says of labels, --> raw_pieces (pieces) --> scene_pieces (scenes) --> Piece --> prepare/
of frames                                                         --> frame_pieces (frames)
"""

from outsize.data.raw.pieces import raw_pieces

__all__ = ["raw_pieces"]
