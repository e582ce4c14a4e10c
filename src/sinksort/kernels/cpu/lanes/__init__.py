"""Short rows, sixteen at a time: each lane of a vector holds another row."""
