"""What a step holds, and what of it can be recomputed or wait in host memory."""
