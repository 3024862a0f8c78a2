"""One training of a job: what stands around the loop of `train/`, from samples to validation, saving and resuming."""
