"""`outsize.within`: a plan for the training steps of any module."""
