"""Numbers in, plan out. No tensors, no files."""
