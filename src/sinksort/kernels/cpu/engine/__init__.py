"""What all families on the CPU use: compilation, the cache of compiled code, threads, vectors and elementary
functions.
"""
