"""One row at a time, by a band or a grid. Rows of more than 2,048 values are worked on in pieces."""
