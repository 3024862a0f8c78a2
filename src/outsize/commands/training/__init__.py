"""What the verb `train` does around its loop."""
