"""Random changes of single operators, constants and conditions in the sources, each of which should make a test fail.

``python -m tests.mutants`` draws them, runs the tests that reach the changed line, and reports what survives.
"""
