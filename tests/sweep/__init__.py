"""Random calls of every operator against float64: seeded, bounded in time, resumable, each failure known by a number.

    python -m tests.sweep --minutes 10                         # the CPU, ten minutes on from where it stopped
    python -m tests.sweep --device cuda --rows 1000000 --minutes 8
    python -m tests.sweep --case 1234                          # one case again: inputs, answers, truth

``cases`` draws a case from its number, ``asking`` calls an operator in any layout, ``judging`` says which rows are
wrong, ``independent`` solves single rows without the package, ``recording`` counts and reports. The sweep needs torch
and NumPy only.
"""
