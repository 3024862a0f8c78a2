"""One short file per verb, each a list of steps; rooms are loaded inside the functions."""
