"""Reads all data once and says what is wrong with it."""
