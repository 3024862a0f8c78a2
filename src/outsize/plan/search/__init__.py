"""The cheapest choice of what is recomputed and what is swapped within a budget."""
