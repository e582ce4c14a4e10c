"""Where tests run: the CPU, and CUDA where there is one. A list to parametrise over, not a skip."""

from __future__ import annotations

import torch

DEVICES: list[str] = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
