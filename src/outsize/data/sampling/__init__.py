"""Which windows of which scenes are learnt from."""
