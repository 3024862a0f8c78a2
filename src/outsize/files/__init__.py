"""Opens and writes files where others may have put something, too."""
