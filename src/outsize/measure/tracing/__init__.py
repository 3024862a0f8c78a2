"""What a model and a step do, seen on shapes alone."""
