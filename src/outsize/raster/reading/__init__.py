"""Opens scenes of strangers and reads their windows."""
