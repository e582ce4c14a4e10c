"""What the options that many operators share mean: written here once, and put into the docstring of each of them.

``help(sinksort.soft_rank)`` is all the documentation that a notebook has, so every docstring lists all its parameters.
``explained`` adds to a docstring those that it does not explain itself, with their defaults. The documentation's site
shows the docstrings of the imported package, so it has the same text.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Callable[..., Any])

#: Option -> what it means, for every operator that has it and does not explain it in words of its own.
OPTIONS: dict[str, str] = {
    "x": "the values, a floating-point tensor of any shape; NaN in a row makes the answers of this row NaN.",
    "dim": "the dimension along which values are compared; all others are batch.",
    "descending": "begin with the largest value instead of the smallest.",
    "largest": "False for the smallest values.",
    "keepdim": "keep ``dim`` in the result, with size 1.",
    "weights": (
        "how much each value counts: non-negative numbers of shape (n,), or of a shape that broadcasts to x. "
        "None: all count the same."
    ),
    "mask": "True for values that exist, False for padding: (n,), or a shape that broadcasts to x. None: all exist.",
    "targets": (
        "m increasing numbers that the values are sent to: (m,), or one row for each row of x. None: a regular grid on "
        "[0, 1], where the squashed values lie."
    ),
    "target_weights": (
        "how much of a row each target receives: non-negative numbers of shape (m,), or one row for each row of x. "
        "None: all receive the same."
    ),
    "num_targets": "m, the number of targets on the default grid. None: n, as many as there are values.",
    "eps": (
        "the softness. Towards 0 answers become those of a hard sort, and gradients vanish or explode; a large eps "
        "makes all values alike. A number, or a tensor: one for all rows or one a row, with a gradient if it is to be "
        "learned."
    ),
    "cost": (
        "h in the cost h(y - x) of sending a value x to a target y: a number p >= 1 for abs(u)^p, ``Huber(delta)``, or "
        "a convex callable."
    ),
    "squash": (
        'how values come to the targets, which lie in [0, 1] by default. "sigmoid" and "arctan" standardise each row '
        'first, so the unit of x does not matter. "robust" standardises by the median and the median absolute '
        "deviation, so that values far away change little for the others. None takes x as it is, so its scale matters: "
        "eps as usual for values in [0, 1], and near 1 for logits. An increasing callable is given x, with its rows "
        "last, instead of all this."
    ),
    "solver": "``Newton(...)``, or the paper's ``Sinkhorn(...)``.",
    "backend": (
        '"auto" uses compiled kernels wherever there are some for the call. "numba" (CPU), "triton" (CUDA) and "torch" '
        "(the reference, in double precision) use this one, or raise an error that says why it cannot answer."
    ),
    "width": "t, the weight of the target that is read; a wider one averages over more values. None: 1/n.",
    "interpolation": (
        "which definition of a sample quantile is the limit for small eps, by its name in ``numpy.quantile`` or "
        '``torch.quantile``. Smooth in q: "hazen", "linear", "weibull", "median_unbiased", "normal_unbiased", '
        '"interpolated_inverted_cdf". Of one or two whole values, so without weights and without a gradient in q: '
        '"lower", "higher", "nearest", "midpoint", "inverted_cdf", "averaged_inverted_cdf", "closest_observation".'
    ),
    "reduction": 'what becomes of the losses of the rows: their "mean", their "sum", or "none", all of them.',
}
_COLUMNS = 88  #: of a docstring on a screen


def explained(thing: _T, *, words: Mapping[str, str] = OPTIONS, skip: tuple[str, ...] = ()) -> _T:
    """A decorator: the docstring lists each parameter of the signature that it does not explain itself.

    ``words`` has the explanations; parameters in ``skip``, and those without words, are left to the docstring.
    """
    if thing.__doc__:  # there is none under python -OO
        told = {name: each for name, each in words.items() if name not in skip}
        thing.__doc__ = with_parameters(thing.__doc__, inspect.signature(thing).parameters, told)
    return thing


def with_parameters(text: str, parameters: Mapping[str, inspect.Parameter], words: Mapping[str, str]) -> str:
    """``text``, a docstring, with an entry in its section ``Args:`` for each parameter that has none and has words.

    The section is made if there is none: before ``Returns:``, or before the first example.
    """
    lines = inspect.cleandoc(text).split("\n")
    known = entries(text)
    wanted = [name for name in parameters if name in words or name in known]
    if "Args:" in lines:
        begin = lines.index("Args:")
        end = next((i for i in range(begin, len(lines)) if not lines[i].strip()), len(lines))
        grouped = [name for name in known if name not in wanted]  # "low, high: ..." names two at once
        lines[begin:end] = []
    else:
        begin = next((i for i, line in enumerate(lines) if line.startswith(("Returns:", ">>> "))), len(lines))
        grouped = []
        if begin == len(lines):
            lines.append("")
            begin += 1
    grouped_names = {part.strip() for name in grouped for part in name.split(",")}
    section = ["Args:"]
    for name in grouped:
        section += _entry(name, known[name])
    for name in wanted:
        if name in known:
            section += _entry(name, _with_default(known[name], parameters[name].default))
        elif name not in grouped_names:
            section += _entry(name, _with_default(words[name], parameters[name].default))
    if len(section) == 1:
        return "\n".join(lines)
    after = lines[begin:]
    return "\n".join([*lines[:begin], *section, *([""] if after and after[0].strip() else []), *after]).rstrip()


def entries(text: str | None) -> dict[str, str]:
    """The section ``Args:`` of a docstring: name, or several with commas -> what is said of it."""
    found: dict[str, str] = {}
    lines = inspect.cleandoc(text or "").split("\n")
    name = ""
    for line in lines[lines.index("Args:") + 1 :] if "Args:" in lines else ():
        begins = re.match(r"    (\w[\w, *]*): (.*)", line)
        if begins:
            name, found[begins[1]] = begins[1], begins[2]
        elif line.startswith("        ") and name:
            found[name] += f" {line.strip()}"
        else:
            break
    return found


def borrowed(thing: Callable[..., Any]) -> dict[str, str]:
    """The explanations of the parameters of ``thing``, one by one, for another that has some of them too."""
    told = entries(thing.__doc__)
    return {name.strip(): said for names, said in told.items() for name in names.split(",")}


def _with_default(said: str, default: Any) -> str:
    """The explanation, and the default value where it is one that says something."""
    if default is inspect.Parameter.empty or default is None or re.search(r"\b[Dd]efault:", said):
        return said
    name = type(default).__name__
    shown = f"{name}()" if name in ("Newton", "Sinkhorn") else re.sub("^'(.*)'$", r'"\1"', repr(default))
    return f"{said.rstrip().rstrip('.')}. Default: {shown}."


def _entry(name: str, said: str) -> list[str]:
    return textwrap.wrap(
        f"{name}: {said}",
        _COLUMNS,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
