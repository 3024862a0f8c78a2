"""The ways to run a training step, and the choice among them."""
