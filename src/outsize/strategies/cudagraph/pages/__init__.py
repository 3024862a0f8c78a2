"""The memory of a captured step, by pages of the driver: as few as its fullest moment fills."""
