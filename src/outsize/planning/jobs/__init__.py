"""What is known of a job, and the plan made from it."""
