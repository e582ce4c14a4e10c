"""Other libraries' names: programs written for them run on sinksort after one line is changed.

``sinksort.compat.torchsort`` and ``sinksort.compat.fast_soft_sort`` project on the permutahedron, as the originals do,
and need no compiler at installation. They compute another relaxation than ``sinksort.soft_rank``: docs/migrating.md
says how the two differ, and when to take the further step.
"""
