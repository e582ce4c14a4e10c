"""Launches that are made again: what is searched for once, and what would be another launch."""

import weakref

import pytest
import torch

import sinksort

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels.gpu.engine import launch as triton_launch  # after the check that Triton is there


class Compiled:
    function, packed_metadata = "function", "metadata"

    def __init__(self, log):
        self.log = log

    def __getitem__(self, grid):
        return lambda *args, stream: self.log.append(("told", grid, args, stream))

    def run(self, x, y, z, stream, function, packed_metadata, launch_metadata, enter, leave, *args):
        assert (function, packed_metadata, launch_metadata, enter, leave) == ("function", "metadata", None, None, None)
        self.log.append(("direct", (x, y, z), args, stream))


class Kernel:
    arg_names = ("x_ptr", "scratch_ptr", "eps", "N", "SQUASH", "BLOCK")

    def __init__(self, compiles=True):
        self.log, self.compiles = [], compiles

    def __getitem__(self, grid):
        def by_triton(*args, num_warps, enable_fp_fusion, **constants):
            assert enable_fp_fusion
            self.log.append(("searched", grid, args, constants, num_warps))
            return Compiled(self.log) if self.compiles else None

        return by_triton


@pytest.fixture
def records(monkeypatch):
    monkeypatch.setattr(triton_launch, "_records", {})
    monkeypatch.setattr(triton_launch, "_stream", lambda _: "the stream")
    return triton_launch._records


def launch_twice(kernel, x, eps, SQUASH=1):
    """Two launches: the second gets the second half of the scratch of the first."""

    def make(launch):
        scratch = launch.empty(2, 64, dtype=torch.float64)
        for part in (scratch, scratch[1]):
            launch(kernel, 7, x, part, eps, len(x), BLOCK=16, SQUASH=SQUASH, num_warps=8)

    triton_launch.launches(("twice", SQUASH), (x,), (), eps, make)


def test_kernels_are_searched_for_once_and_then_launched_directly(records):
    kernel, x, other = Kernel(), torch.zeros(64), torch.ones(64)
    launch_twice(kernel, x, 0.1)
    launch_twice(kernel, other, 0.2)
    assert [how for how, *_ in kernel.log] == ["searched", "searched", "direct", "direct"]
    _, grid, (first, _, *numbers), constants, warps = kernel.log[0]
    assert first is x
    assert (grid, numbers, constants, warps) == ((7,), [0.1, 64], {"SQUASH": 1, "BLOCK": 16}, 8)
    (_, grid, args, stream), (*_, again, _) = kernel.log[2:]
    assert (grid, args[0], args[2:], stream) == ((7, 1, 1), other.data_ptr(), (0.2, 64, 1, 16), "the stream")
    assert again == (args[0], args[1] + 512, *args[2:])


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.zeros(64, dtype=torch.float16)},
        {"x": torch.zeros(65)[1:]},  # not aligned
        {"x": torch.zeros(128)[::2]},
        {"x": torch.zeros(63)},
        {"SQUASH": 2},
    ],
    ids=["dtype", "alignment", "stride", "length", "constant"],
)
def test_what_makes_another_kernel_is_searched_for(records, change):
    kernel = Kernel()
    for given in ({}, change, {}, change):
        launch_twice(kernel, **({"x": torch.zeros(64), "eps": 0.1} | given))
    assert [how for how, *_ in kernel.log] == 4 * ["searched"] + 4 * ["direct"]


def test_a_tensor_given_twice_is_not_taken_for_two(records):
    kernel, x, w = Kernel(), torch.zeros(64), torch.ones(64)
    for given in ((x, x), (x, w), (w, w), (w, x)):
        triton_launch.launches((), given, (), 0.1, lambda go, of=given: go(kernel, 7, *of, 0.1, 64, BLOCK=16, SQUASH=1))
    assert [how for how, *_ in kernel.log] == ["searched", "searched", "direct", "direct"]
    twice, swapped = (args[:2] for _, _, args, _ in kernel.log[2:])
    assert twice == (w.data_ptr(), w.data_ptr())
    assert swapped == (w.data_ptr(), x.data_ptr())


def test_what_was_not_compiled_is_not_recorded(records):
    kernel = Kernel(compiles=False)
    for _ in range(2):
        launch_twice(kernel, torch.zeros(64), 0.1)
    assert not records
    assert [how for how, *_ in kernel.log] == 4 * ["searched"]


def test_records_do_not_pile_up(records, monkeypatch):
    monkeypatch.setattr(triton_launch, "_MOST", 3)
    for n in range(1, 9):
        launch_twice(Kernel(), torch.zeros(n), 0.1)
        assert len(records) <= 3


@pytest.mark.parametrize("scratch", [0, 64])
def test_a_workspace_is_that_of_a_stream_and_grows(records, monkeypatch, scratch):
    """All calls on a stream get the same memory, those on another stream another one; and scratch beside it."""
    monkeypatch.setattr(triton_launch, "_workspaces", {})
    kernel = Kernel()

    def call(x, size):
        def make(launch):
            of_call = [launch.empty(scratch, dtype=torch.float32)] if scratch else []
            launch(kernel, 7, x, launch.workspace(size, dtype=torch.float32), 0.1, len(x), BLOCK=16, SQUASH=1)
            for t in of_call:
                launch(kernel, 7, x, t, 0.1, len(x), BLOCK=16, SQUASH=1)

        triton_launch.launches(("kept", size), (x,), (), 0.1, make)
        return kernel.log[-2 if scratch else -1][2][1]

    x = torch.zeros(64)
    for size in (16, 1000):  # recorded
        call(x, size)
    small, same = call(x, 16), call(torch.ones(64), 16)
    (kept,) = triton_launch._workspaces.values()
    assert small == same == kept.data_ptr()
    assert len(kept) == 256
    large = call(x, 1000)
    (kept,) = triton_launch._workspaces.values()
    assert large == call(x, 16) == kept.data_ptr()
    assert len(kept) == 4096
    monkeypatch.setattr(triton_launch, "_stream", lambda _: "another stream")
    assert call(x, 16) != large
    assert {stream for _, stream in triton_launch._workspaces} == {"the stream", "another stream"}


def test_counters_are_those_of_a_stream_and_zero(records, monkeypatch):
    """Whoever counts leaves them so; those of another stream are others."""
    monkeypatch.setattr(triton_launch, "_counters", {})
    kernel, x = Kernel(), torch.zeros(64)

    def call():
        triton_launch.launches(
            (), (x,), (), 0.1, lambda go: go(kernel, 7, x, go.counters(32), 0.1, len(x), BLOCK=16, SQUASH=1)
        )
        return kernel.log[-1][2][1]

    call()  # recorded
    assert call() == call() == triton_launch._counters[x.get_device(), "the stream"].data_ptr()
    monkeypatch.setattr(triton_launch, "_stream", lambda _: "another stream")
    assert call() == triton_launch._counters[x.get_device(), "another stream"].data_ptr()
    assert len({t.data_ptr() for t in triton_launch._counters.values()}) == 2
    assert not any(t.any() for t in triton_launch._counters.values())


def test_a_constant_stays_where_it_is(records):
    kernel, x, other, table = Kernel(), torch.zeros(64), torch.ones(64), torch.ones(4)
    for given in (x, other):
        triton_launch.launches(
            (), (given,), (), 0.1, lambda go, t=given: go(kernel, 7, t, go.constant(table), 0.1, 64, BLOCK=16, SQUASH=1)
        )
    assert kernel.log[1][2][:2] == (other.data_ptr(), table.data_ptr())


def test_a_recorder_refuses_what_it_could_not_repeat(records):
    kernel, x = Kernel(), torch.zeros(64)
    with pytest.raises(AssertionError, match="nobody told the recorder about"):
        triton_launch.launches((), (x,), (), 0.1, lambda go: go(kernel, 7, x, x.clone(), 0.1, 64, BLOCK=16, SQUASH=1))
    with pytest.raises(AssertionError, match=r"given 0\.2 and not 0\.1, which would not change"):
        triton_launch.launches((), (x,), (), 0.1, lambda go: go(kernel, 7, x, x, 0.2, 64, BLOCK=16, SQUASH=1))


def test_constants_with_a_fraction_are_part_of_the_kernel(records):
    kernel, x = Kernel(), torch.zeros(64)
    for eps in (0.1, 0.3):
        triton_launch.launches((), (x,), (), eps, lambda go, e=eps: go(kernel, 7, x, x, e, 64, BLOCK=16, SQUASH=0.5))
    assert kernel.log[1][2][2:] == (0.3, 64, 0.5, 16)


def test_who_wants_to_be_told_of_launches_is(records, monkeypatch):
    from triton import knobs

    kernel, x = Kernel(), torch.zeros(64)
    for hook in (None, print):
        monkeypatch.setattr(knobs.runtime, "launch_enter_hook", hook)
        launch_twice(kernel, x, 0.1)
        launch_twice(kernel, x, 0.1)
    assert [how for how, *_ in kernel.log] == 2 * ["searched"] + 2 * ["direct"] + 4 * ["told"]
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", knobs.HookChain())
    launch_twice(kernel, x, 0.1)
    knobs.runtime.launch_enter_hook.add(print)
    launch_twice(kernel, x, 0.1)
    assert [how for how, *_ in kernel.log[8:]] == 2 * ["direct"] + 2 * ["told"]


class Likes:
    """Asks that are alike: x and w change, y does not. A result in double precision, scratch, and a number."""

    def __init__(self):
        self.kernel, self.prepared, self.y = Kernel(), {}, torch.zeros(64)
        self.kernel.arg_names = ("x_ptr", "y_ptr", "w_ptr", "out_ptr", "scratch_ptr", "eps", "BLOCK")

    def __call__(self, x, w):
        made = triton_launch.replayed(self.prepared, "like", x, w)
        if made is not None:
            return made
        out = torch.zeros(3, 64, dtype=torch.float64)

        def make(launch):
            scratch = launch.empty(64, dtype=torch.float32)
            launch(self.kernel, 7, x, self.y, w, out, scratch[8:], 0.1, BLOCK=16)

        triton_launch.launches(("like",), (x, self.y, w), (out,), 0.1, make, self.prepared, (x, w))
        return [out]

    @property
    def how(self):
        return [how for how, *_ in self.kernel.log]


def test_of_asks_that_are_alike_only_the_address_of_what_changes_is_looked_at(records):
    like = Likes()
    like(torch.zeros(64), torch.zeros(64))
    x, w = torch.ones(64), torch.ones(64)
    (out,) = like(x, w)
    assert like.how == ["searched", "direct"]
    assert not records
    _, grid, args, stream = like.kernel.log[1]
    assert args[:4] == (x.data_ptr(), like.y.data_ptr(), w.data_ptr(), out.data_ptr())
    assert (grid, args[5:], stream) == ((7, 1, 1), (0.1, 16), "the stream")
    assert (out.shape, out.dtype) == ((3, 64), torch.float64)
    (other,) = like(x, w)
    assert other.data_ptr() != out.data_ptr()  # whose owner may still need it


@pytest.mark.parametrize("which", ["x", "w"])
@pytest.mark.parametrize("other", [torch.zeros(65)[1:], torch.zeros(128)[::2], torch.zeros(1).expand(64)],
                         ids=["alignment", "stride", "expanded"])  # fmt: skip
def test_another_layout_of_what_changes_is_searched_for(records, which, other):
    like = Likes()
    usual = {"x": torch.zeros(64), "w": torch.zeros(64)}
    for given in (usual, usual | {which: other}) * 2:
        like(**given)
    assert like.how == 2 * ["searched"] + 2 * ["direct"]
    assert [args[2 * (which == "w")] for _, _, args, _ in like.kernel.log[2:]] == [
        usual[which].data_ptr(),
        other.data_ptr(),
    ]


def test_one_tensor_for_two_that_change_is_not_remembered_as_one(records):
    like, x, w = Likes(), torch.zeros(64), torch.ones(64)
    for given in ((x, x), (x, w), (w, x)):
        like(*given)
    assert like.how == ["searched", "searched", "direct"]
    assert like.kernel.log[2][2][::2][:2] == (w.data_ptr(), x.data_ptr())


def test_a_memory_keeps_nothing_that_changes_and_does_not_grow(records, monkeypatch):
    monkeypatch.setattr(triton_launch, "_MOST_PREPARED", 3)
    like = Likes()
    x, w = torch.zeros(64), torch.zeros(64)
    gone = [weakref.ref(t) for t in (x, w)]
    like(x, w)
    like.kernel.log.clear()
    assert like.prepared
    del x, w
    assert [ref() for ref in gone] == [None, None]
    for stride in range(1, 9):
        like(torch.zeros(64 * stride)[::stride], torch.zeros(64))
        assert len(like.prepared) <= 3


class Warm(Kernel):
    """A kernel that Triton could compile ahead."""

    def __init__(self, fails=False):
        super().__init__()
        self.warmed, self.fails = [], fails

    def warmup(self, *args, grid, **options):
        self.warmed.append((grid, args[2:], options))
        if self.fails:
            raise RuntimeError("this kernel does not compile")


@pytest.fixture
def compilable(records, monkeypatch):
    monkeypatch.setattr(triton_launch, "JITFunction", Warm)
    if triton_launch.AsyncCompileMode is None:
        pytest.skip("this Triton compiles one kernel after the other")


def call(kernel, back, x):
    """Two launches, and two of the backward pass, if there is one."""

    def make(of, launch):
        for block in (16, 32):
            launch(of, 7, x, launch.empty(64, dtype=torch.float32), 0.1, len(x), BLOCK=block, SQUASH=1)

    def backward():
        triton_launch.launches(("backward",), (x,), (), 0.1, lambda launch: make(back, launch))

    triton_launch.launches(("forward",), (x,), (), 0.1, lambda launch: make(kernel, launch), backward=back and backward)
    return backward


def test_kernels_of_a_call_are_compiled_together_before_any_is_launched(compilable):
    kernel = Warm()
    call(kernel, None, torch.zeros(64))
    options = {"SQUASH": 1, "num_warps": 4, "enable_fp_fusion": True}
    assert kernel.warmed == [((7,), (0.1, 64), {**options, "BLOCK": block}) for block in (16, 32)]
    assert [how for how, *_ in kernel.log] == ["searched", "searched"]


def test_those_of_the_backward_pass_are_compiled_with_them_if_there_will_be_one(compilable):
    kernel, back, x = Warm(), Warm(), torch.zeros(64)
    backward = call(kernel, back, x)
    assert len(kernel.warmed) == len(back.warmed) == 2
    assert not back.log, "a launch that is planned is not made"
    backward()
    assert [how for how, *_ in back.log] == ["searched", "searched"]


def test_a_kernel_that_does_not_compile_says_so_at_its_launch(compilable):
    kernel = Warm(fails=True)
    call(kernel, Warm(), torch.zeros(64))
    assert [how for how, *_ in kernel.log] == ["searched", "searched"]


def test_a_gradient_is_announced_to_kernels():
    """By the call that will need it, and only by that."""
    from sinksort.kernels import contract

    for needed in (True, False, True):
        sinksort.soft_rank(torch.randn(3, 7, requires_grad=needed))
        assert contract.to_come.gradient is needed
