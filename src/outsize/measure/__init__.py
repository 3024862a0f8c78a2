"""Facts about models and machines, traced or measured."""
