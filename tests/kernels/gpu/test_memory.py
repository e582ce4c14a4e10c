"""What rows take of memory in Triton, and what is kept of short ones in few bytes."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is made for Linux only")

import triton  # after the check that it is there
import triton.language as tl

from sinksort.kernels.gpu import long, rows
from sinksort.kernels.gpu.engine import launch
from sinksort.kernels.gpu.engine import state as triton_state
from sinksort.kernels.requests.targets import nodes_in_place_of
from tests.kernels.gpu.test_rows import DEVICE, random, rank_request


@pytest.fixture
def scratch(monkeypatch):
    """Bytes of scratch that were asked for; nothing is launched."""
    found = []

    def empty(recorder, *shape, dtype):
        part = recorder._changing[0].new_empty(shape, dtype=dtype)
        found.append(whole(size(part), 256))
        return part

    monkeypatch.setattr(launch.Recorder, "empty", empty)
    for make in ("__call__", "at_once"):
        monkeypatch.setattr(launch.Recorder, make, lambda *_args, **_constants: None)
    monkeypatch.setattr(launch.Recorder, "record", lambda _recorder: None)
    monkeypatch.setattr(launch, "_records", {})  # nothing that was launched here is to be launched again
    return found


def size(t):
    return t.numel() * t.element_size()


def whole(size, unit=512):
    """What torch takes of a GPU's memory for so many bytes."""
    return -(-size // unit) * unit


def taken(*tensors):
    return sum(whole(size(t)) for t in tensors)


@pytest.mark.parametrize(
    ("kernels", "R", "n"),
    [(rows, 64, n) for n in (10, 33, 100, 128)]
    + [(rows, R, n) for R, n in ((1, 1000), (128, 1000), (1, 2048))]
    + [(long, R, n) for R, n in ((1, 10_000), (16, 10_000), (1, 100_000))],
)
@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_rows_take_at_most_four_times_their_size(scratch, kernels, R, n, eps):
    request, phi = rank_request(random(R, n).to(DEVICE), eps, nodes_in_place_of(n, eps, "triton"))
    out, state, error = kernels.pull(request, phi)
    assert taken(out, state, error) + whole(sum(scratch)) <= 4 * size(request.x)
    scratch.clear()
    grad = kernels.pull_backward(request, phi, state, request.x)
    assert taken(out, state, grad) + whole(sum(scratch)) <= 4 * size(request.x)


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
