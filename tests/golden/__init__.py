"""Answers and gradients of every operator as they were on one commit, with the truth beside them.

    python -m tests.golden make                  # write tests/golden/answers.npz again
    python -m tests.golden make --to FILE        # write another file
    python -m tests.golden make --check          # say which cases changed, and write nothing
    python -m tests.golden compare --with FILE   # demand the same bits as in FILE

``cases`` says what is called, ``inputs`` makes the numbers, ``calls`` calls the operator and the reference in float64,
``store`` is the file, ``judge`` compares. ``tests/guards/test_golden.py`` runs every case in each ``make test``.
"""
