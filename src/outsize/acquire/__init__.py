"""Fetches the files of a list: resumed, repeated, checked, written down, and at a pace that a server can stand."""
