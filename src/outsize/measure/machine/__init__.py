"""What this machine has and does, measured and remembered."""
