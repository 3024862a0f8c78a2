"""What lies on disk, one format per file."""
