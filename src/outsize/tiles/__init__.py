"""Integer geometry of large images: windows, grids, halos. No tensors."""
