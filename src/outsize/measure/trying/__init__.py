"""What a model really does: tried at other sizes, places and batches, and two ways compared."""
