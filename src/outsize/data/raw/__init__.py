"""What `outsize prepare` is to make of a job's raw files, as pieces of work.

[prepare] and what [data] says of labels --> raw_pieces (scenes) --> Piece --> prepare/
"""

from outsize.data.raw.scenes import raw_pieces

__all__ = ["raw_pieces"]
