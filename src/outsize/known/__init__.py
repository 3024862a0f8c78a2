"""What is known without a look at the data: classes and colours of published datasets, wavelengths of bands by name."""
