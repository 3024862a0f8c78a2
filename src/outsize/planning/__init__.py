"""From a job or a module to facts, profile, trial and plan."""
