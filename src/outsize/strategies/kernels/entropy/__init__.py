"""Cross-entropy over pixels as one kernel each way."""
