"""A classifier trained on digits of which 40% have a label drawn at random, by ``topk_loss`` and by cross-entropy.

    python examples/wrong_labels.py

Needs scikit-learn, for its data: ``pip install '.[sklearn]'``. Prints the error on digits with right labels.
Steps and step size are tuned for neither loss; docs/losses.md compares them with both tuned, where the gap is smaller.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sinksort.losses import topk_error, topk_loss

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "topk_loss, J = log": lambda logits, labels: topk_loss(logits, labels, J="log"),
    "cross-entropy": nn.functional.cross_entropy,
}


def held_out_error(loss: Loss, steps: int, seed: int) -> float:
    """The share of wrong answers on digits that were not trained on."""
    torch.manual_seed(seed)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    X, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    labels = torch.where(torch.rand(400) < 0.4, torch.randint(10, (400,)), y[:400])
    model = nn.Linear(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(X[:400]), labels).backward()
        optimizer.step()
    with torch.no_grad():
        return topk_error(model(X[400:]), y[400:]).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    for name, loss in LOSSES.items():
        errors = [held_out_error(loss, given.steps, seed) for seed in range(given.seeds)]
        print(f"{name}: {100 * sum(errors) / len(errors):.1f}% errors over {given.seeds} seeds")


if __name__ == "__main__":
    main()
