"""What a model holds beside its parameters, noted and put back."""
