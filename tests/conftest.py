"""One thread a worker, deterministic hypothesis, and where the suite runs: everywhere there is."""

from __future__ import annotations

import os

import torch
from hypothesis import settings

torch.set_num_threads(int(os.environ.get("SINKSORT_TEST_THREADS", "1")))
settings.register_profile("sinksort", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("sinksort")
