"""Kernels compiled for a GPU that is not there, and what became of them, as JSON:

python -m tests.offline

Not in the process of the tests, in which Triton interprets.
"""

import json
import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sinksort.kernels.gpu.engine.sums import agreed_sum
from sinksort.kernels.gpu.engine.tiles import indices, over_targets, over_values


@triton.jit
def dot(x, y, out, AGREED: tl.constexpr):
    i = tl.arange(0, 16)
    products = tl.load(x + i) * tl.load(y + i)
    tl.store(out + i, agreed_sum(products, 0) if AGREED else tl.sum(products, axis=0))


@triton.jit
def tile(x, y, out, N, KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr):
    j, i = indices(N, KA, V, X, KB)
    products = tl.load(x + i) * tl.load(y + j)
    tl.store(out + i, over_targets(products * over_values(products, KA, X, KB), V, X, KB))


def made(kernel, numbers, **constants):
    """Of a kernel with pointers, whole numbers and constants."""
    pointers = dict.fromkeys(("x", "y", "out"), "*fp32")
    signature = {**pointers, **dict.fromkeys(numbers, "i32"), **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "enable_fp_fusion": True}
    ).asm


def unequal(ptx):
    """How often a thread adds another's number to a product of its own that is not rounded."""
    received = set(re.findall(r"shfl\.sync\.bfly\.b32\s+(%\w+)", ptx))
    return sum(addend in received for addend in re.findall(r"fma\.rn\.f32\s+%\w+, %\w+, %\w+, (%\w+);", ptx))


def exchanged(ptx):
    return ptx.count("shfl.sync.bfly")


if __name__ == "__main__":
    tiled = made(tile, ["N"], KA=8, V=4, X=16, KB=8)["ptx"]
    print(
        json.dumps(
            {
                "plain": unequal(made(dot, [], AGREED=False)["ptx"]),
                "agreed": unequal(made(dot, [], AGREED=True)["ptx"]),
                "tile": unequal(tiled),
                "exchanged": exchanged(tiled),
            }
        )
    )
