"""One section of the page per file."""
