"""The cores of a prediction that fit, and the passes of an exact one."""
