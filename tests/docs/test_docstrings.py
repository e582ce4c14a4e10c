"""Every public name says what it is and shows it: a docstring with an example, and the example is run."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

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


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_what_is_public(package: str) -> None:
    """No name twice, and every function and class that the package imports by name without an underscore."""
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    public = [name for name in vars(module) if not name.startswith("_") and needs_an_example(package, name)]
    assert sorted(set(public) - set(module.__all__)) == []
