"""Every public name says what it is and shows it: a docstring with an example, and the example is run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re

import pytest

import sinksort
from sinksort.core.options import OPTIONS, borrowed, entries, explained

PACKAGES = ["sinksort", "sinksort.distributed", "sinksort.losses", "sinksort.nn", "sinksort.relaxations"]
PACKAGES += ["sinksort.plot", "sinksort.sklearn", "sinksort.streaming"]
PUBLIC = [(package, name) for package in PACKAGES for name in importlib.import_module(package).__all__]
DROP_INS = ["sinksort.compat.torchsort"]
DROP_INS += ["sinksort.compat.fast_soft_sort.numpy_ops", "sinksort.compat.fast_soft_sort.pytorch_ops"]
PUBLIC += [(module, name) for module in DROP_INS for name in importlib.import_module(module).__all__]
PUBLIC += [("sinksort.schedules", name) for name in ("EpsSchedule", "rank_spread", "suggest_eps")]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(module: str, name: str) -> doctest.DocTest:
    thing = getattr(importlib.import_module(module), name)
    return doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {}, f"{module}.{name}", None, 0)


def needs_an_example(module: str, name: str) -> bool:
    """Functions and classes; constants and type aliases have no docstring of their own."""
    thing = getattr(importlib.import_module(module), name)
    return inspect.isfunction(thing) or inspect.isclass(thing)


@pytest.mark.parametrize(("module", "name"), [pair for pair in PUBLIC if needs_an_example(*pair)])
def test_example_runs(module: str, name: str) -> None:
    test = examples(module, name)
    assert test.examples, f"{module}.{name} has no >>> example in its docstring"
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.append)
    assert result.failed == 0, "".join(told)


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_public_names_exist_and_are_explained(module: str, name: str) -> None:
    thing = getattr(importlib.import_module(module), name)
    if needs_an_example(module, name):
        first = (inspect.getdoc(thing) or "").splitlines()[0]
        assert len(first) > 20
        assert first.rstrip().endswith((".", ":")), first


COMPLETE = ("sinksort", "sinksort.distributed", "sinksort.losses", "sinksort.nn", "sinksort.streaming")
BY_HAND = ("Plan", "SmoothPlan", "TopK", "Power", "Huber", "SoftModule", "last_backend", "value_checks")


def complete() -> list[tuple[str, str]]:
    """The operators, losses and modules that a user calls."""
    return [(m, name) for m, name in PUBLIC if m in COMPLETE and name not in BY_HAND and needs_an_example(m, name)]


@pytest.mark.parametrize(("module", "name"), complete())
def test_docstring_tells_every_parameter(module: str, name: str) -> None:
    thing = getattr(importlib.import_module(module), name)
    assert [parameter for parameter in inspect.signature(thing).parameters if parameter not in borrowed(thing)] == []


@pytest.mark.parametrize(("module", "name"), [pair for pair in PUBLIC if needs_an_example(*pair)])
def test_docstring_begins_with_words(module: str, name: str) -> None:
    first = (inspect.getdoc(getattr(importlib.import_module(module), name)) or "").split("\n")[0]
    assert re.match(r"(``[\w.]+``|[A-Z][\w'-]*|eps)[ ,:]", first), f"this begins with a formula: {first}"


def test_shared_options_have_one_text_and_the_default_of_their_operator() -> None:
    for operator, eps in ((sinksort.soft_rank, "0.01"), (sinksort.losses.spearman_loss, "0.01")):
        assert entries(operator.__doc__)["eps"] == f"{OPTIONS['eps'].rstrip('.')}. Default: {eps}."
    assert entries(sinksort.soft_rank.__doc__)["solver"].endswith(" Default: Newton().")
    assert entries(sinksort.soft_topk.__doc__)["largest"] == "False for the smallest values. Default: True."


def test_parameters_are_listed_in_the_order_of_the_signature() -> None:
    def f(x, k, low=0.0, high=1.0, eps=0.5):
        """Words.

        Args:
            k: how many, in
                two lines.
            low, high: both.

        >>> 1
        1
        """

    words = {"x": "the values.", "eps": "the softness.", "high": "not this."}
    assert explained(f, words=words).__doc__ == (
        "Words.\n\nArgs:\n    low, high: both.\n    x: the values.\n    k: how many, in two lines.\n"
        "    eps: the softness. Default: 0.5.\n\n>>> 1\n1"
    )


def test_completion_shows_public_names_and_packages_alone() -> None:
    shown = [name for name in dir(sinksort) if not name.startswith("__")]
    packages = ["compat", "distributed", "losses", "nn", "plot", "relaxations", "schedules", "sklearn", "streaming"]
    assert shown == sorted([*sinksort.__all__, *packages])


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_what_is_public(package: str) -> None:
    """No name twice, and every function and class that the package imports by name without an underscore."""
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    public = [name for name in vars(module) if not name.startswith("_") and needs_an_example(package, name)]
    assert sorted(set(public) - set(module.__all__)) == []
