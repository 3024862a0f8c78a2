"""Whole pictures as samples, each with one class.

scenes of pictures --> labelled_pictures --> Pictures: read, brought to one size (pictures)
                                                '-> ShuffledPictures: drawn, changed (shuffled)
"""

from outsize.data.pictures.pictures import PictureFile, Pictures, labelled_pictures
from outsize.data.pictures.shuffled import ShuffledPictures

__all__ = ["PictureFile", "Pictures", "ShuffledPictures", "labelled_pictures"]
