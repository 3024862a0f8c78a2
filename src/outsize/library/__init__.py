"""What the package offers to a program: a scene predicted, and proved, in one call."""
