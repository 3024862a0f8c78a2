"""Objects with masks: the value, where they come from, and the file that holds them."""
