"""Ways to run a step; each knows nothing of the others, `compose` puts them in order."""
