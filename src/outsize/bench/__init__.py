"""The same job run under several plans, sizes or machines, measured side by side; one file for each kind."""
