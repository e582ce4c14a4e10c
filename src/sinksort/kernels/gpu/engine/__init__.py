"""What all families on a GPU use: launches, the cache of compiled code, states, sums and elementary functions."""
