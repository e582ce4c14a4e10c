"""Two to four targets, as masks and quantiles have: a threshold or a few sums over the row, and no matrix."""
