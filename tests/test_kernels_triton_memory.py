"""What rows of up to 2048 values take of memory in Triton, and what is kept of them in few bytes."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is made for Linux only")

import triton  # after the check that it is there
import triton.language as tl

from sinksort.kernels import triton_launch, triton_rows, triton_state
from sinksort.kernels.tables import nodes_in_place_of
from tests.test_kernels_triton import DEVICE, random, rank_ask


@pytest.fixture
def scratch(monkeypatch):
    """Bytes of scratch that were asked for; nothing is launched."""
    taken = []

    def empty(recorder, *shape, dtype):
        part = recorder._changing[0].new_empty(shape, dtype=dtype)
        taken.append(size(part))
        return part

    monkeypatch.setattr(triton_launch.Recorder, "empty", empty)
    monkeypatch.setattr(triton_launch.Recorder, "__call__", lambda *_args, **_constants: None)
    monkeypatch.setattr(triton_launch.Recorder, "record", lambda _recorder: None)
    monkeypatch.setattr(triton_launch, "_records", {})  # nothing that was launched here is to be launched again
    return taken


def size(t):
    return t.numel() * t.element_size()


@pytest.mark.parametrize("n", [10, 33, 100, 128])
@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_short_rows_take_at_most_four_times_their_size(scratch, n, eps):
    ask, phi = rank_ask(random(64, n).to(DEVICE), eps, nodes_in_place_of(n, eps, "triton"))
    out, state, error = triton_rows.pull(ask, phi)
    assert size(out) + size(state) + size(error) + sum(scratch) <= 4 * size(ask.x)
    scratch.clear()
    grad = triton_rows.pull_backward(ask, phi, state, ask.x)
    assert size(out) + size(state) + size(grad) + sum(scratch) <= 4 * size(ask.x)


@triton.jit
def there_and_back(state, U, s, out, K, BK: tl.constexpr):
    j = tl.arange(0, BK)
    triton_state.store_potential(state, state, tl.load(U + j), triton_state.exponent_of(tl.load(s)), j, K, j < K)
    tl.debug_barrier()
    tl.store(out + j, triton_state.load_potential(state, state, j, K, j < K))
    high, low = triton_state.load_potential_halves(state, j, K, j < K)
    tl.store(out + K + j, high.to(tl.float64) + low.to(tl.float64))


@pytest.mark.parametrize("s", [1e-3, 2.0, 2e4, 1e8])
def test_potentials_keep_48_bits(s):
    most = 1 + 2048 / s
    U = torch.linspace(-0.999 * most, 0.999 * most, 16, dtype=torch.float64, device=DEVICE)
    U[7] = -1e-13
    state = U.new_full((triton_state.doubles_for(16) + 1,), torch.nan)
    out = U.new_empty(2, 16)
    there_and_back[(1,)](state, U, U.new_tensor([s]), out, 16, BK=16)
    assert (out - U).abs().max() <= most * 2**-47
    assert torch.equal(out[0], out[1])  # in one piece and in two halves
    assert state[-1].isnan()  # nothing is written beyond
