"""Regression on contaminated data with a loss that looks at all ranks at once.

    torchrun --nproc-per-node=4 examples/global_least_quantile.py

Each rank holds some of the rows. A third of all rows is contaminated, and they are not evenly spread: the last rank has
most of them, so no rank could tell by itself what is an outlier. The loss is the 0.6 quantile of the squared residuals
of *all* rows (least quantile of squares), by ``sinksort.distributed.soft_quantile``. Rank 0 also trains alone on all
rows, and the two results are compared.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor

import sinksort
import sinksort.distributed

QUANTILE, EPS = 0.6, 0.01


def rows(n: int, features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Design, response and the coefficients behind it; the last third of the responses is wrong."""
    generator = torch.Generator().manual_seed(0)
    design = torch.randn(n, features, generator=generator, dtype=torch.float64)
    truth = torch.randn(features, generator=generator, dtype=torch.float64)
    response = design @ truth + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    wrong = n // 3
    response[n - wrong :] = 20.0 + 5.0 * torch.randn(wrong, generator=generator, dtype=torch.float64)
    return design, response, truth


def start(design: Tensor) -> tuple[Tensor, torch.optim.Optimizer]:
    coefficients = torch.zeros(design.shape[1], dtype=torch.float64, requires_grad=True)
    return coefficients, torch.optim.Adam([coefficients], lr=0.05)


def train_together(design: Tensor, response: Tensor, steps: int) -> Tensor:
    """Every rank calls this with its own rows, and all get the same coefficients."""
    coefficients, optimizer = start(design)
    for step in range(steps):
        squares = (response - design @ coefficients).square()
        # Every rank gets the same number. Each takes its share of it as its own loss, and the sum of all is the loss.
        loss = sinksort.distributed.soft_quantile(squares, QUANTILE, eps=EPS)
        optimizer.zero_grad()
        (loss / dist.get_world_size()).backward()
        dist.all_reduce(coefficients.grad)  # what DistributedDataParallel does for a model
        optimizer.step()
        if dist.get_rank() == 0 and (step % max(1, steps // 5) == 0 or step == steps - 1):
            print(f"step {step:4d}   0.6 quantile of the squared residuals of all ranks: {loss.item():.6f}", flush=True)
    return coefficients.detach()


def train_alone(design: Tensor, response: Tensor, steps: int) -> Tensor:
    coefficients, optimizer = start(design)
    for _ in range(steps):
        loss = sinksort.soft_quantile((response - design @ coefficients).square(), QUANTILE, eps=EPS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return coefficients.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--features", type=int, default=8)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    design, response, truth = rows(options.rows, options.features)
    mine = torch.arange(options.rows).tensor_split(dist.get_world_size())[dist.get_rank()]
    together = train_together(design[mine], response[mine], options.steps)
    if dist.get_rank() == 0:
        alone = train_alone(design, response, options.steps)
        least_squares = torch.linalg.lstsq(design, response).solution
        print(f"distance to the true coefficients: {(together - truth).norm():.4f}")
        print(f"of least squares, for comparison:  {(least_squares - truth).norm():.4f}")
        print(f"largest difference to the training in one process: {(together - alone).abs().max():.1e}")
    dist.barrier()  # nobody leaves while rank 0 is at work
    dist.destroy_process_group()
    time.sleep(0.1)  # threads of gloo still let go of Python objects; a process that ends under them is aborted


if __name__ == "__main__":
    main()
