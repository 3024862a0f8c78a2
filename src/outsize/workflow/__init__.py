"""Runs the verbs of jobs one after the other, or beside each other, and those alone whose inputs have changed."""
