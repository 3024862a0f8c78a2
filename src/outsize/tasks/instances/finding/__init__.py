"""Objects of whole scenes: tiles that overlap through a detector, what they saw joined to objects.

many      scenes of one size share batches         objects   one scene, tile by tile
paste     raw answers -> objects                   seams     sightings of neighbouring tiles joined
"""

from outsize.tasks.instances.finding.many import find_in_many
from outsize.tasks.instances.finding.objects import Finder, find_objects

__all__ = ["Finder", "find_in_many", "find_objects"]
