"""What is known of published datasets: their classes, colours and class maps, as data files."""
