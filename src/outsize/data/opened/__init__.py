"""Files that stay open, or decoded, while samples are drawn from them.

OpenScenes (readers)       lends a reader to any thread; closes those not used for longest
   '-> DecodedPictures (decoded)   pictures that processes share: each decoded once, by whoever needs it first
"""

from outsize.data.opened.decoded import can_share_decoded
from outsize.data.opened.readers import LIMIT_BYTES, OpenScenes, ready_for_processes

__all__ = ["LIMIT_BYTES", "OpenScenes", "can_share_decoded", "ready_for_processes"]
