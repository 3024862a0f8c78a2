"""The training loop and what it stands on: phases, optimizer, checkpoints."""
