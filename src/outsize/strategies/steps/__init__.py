"""What a step is, and the ways to run one in parts, again, or as a plan says."""
