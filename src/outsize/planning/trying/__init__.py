"""Steps that are really run before a plan is made, each where it can do no harm."""
