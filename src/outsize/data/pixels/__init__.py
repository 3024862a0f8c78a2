"""Changes of pixels: bands, values, sizes, colours, and maps made of them."""
