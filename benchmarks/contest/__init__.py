"""The harness of ``benchmarks/versus.py``: cells, one process for each contestant, interleaved rounds, a report."""
