"""What is public: the modules of ``sinksort`` that have ``__all__``, and the names in it. Read from the sources."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[2]
#: Behind the public names; what is public of them is so in ``sinksort`` itself.
ROOMS = ("sinksort.operators", "sinksort.core.solvers", "sinksort.kernels")
#: Words of everyday language, or names that the operators have too: these link only when written in full.
IN_FULL = ("sinksort.relaxations", "sinksort.distributed", "sinksort.streaming", "sinksort.plot", "sinksort.compat")
#: A code span that is nothing but a name, or a call of it; not one that is a link already.
SPAN = re.compile(r"(?<![\[`\w])(`{1,2})([A-Za-z_][\w.]*)(\([^`]*\))?\1(?![\]`])")
FENCE = re.compile(r"^\s*(```|~~~)")


@functools.cache
def package() -> griffe.Module:
    module = griffe.load("sinksort", search_paths=[ROOT / "src"], resolve_aliases=True)
    assert isinstance(module, griffe.Module)
    return module


@functools.cache
def modules() -> dict[str, list[str]]:
    return public_names(package())


def public_names(root: griffe.Module) -> dict[str, list[str]]:
    """Public names by public module, in the order of their ``__all__``; ``sinksort`` first."""
    public = [root, *sorted(public_modules(root), key=lambda part: part.path)]
    return {part.path: [str(name) for name in part.exports] for part in public if part.exports}


def public_modules(package: Any) -> list[Any]:
    """The modules of a package; of drop-ins, which have the modules of other libraries, those inside as well."""
    inside = [part for part in package.members.values() if not part.is_alias and part.is_module]
    inside = [part for part in inside if not part.name.startswith("_") and part.path not in ROOMS]
    deeper = [each for part in inside if part.path.startswith("sinksort.compat") for each in public_modules(part)]
    return inside + deeper


def undocumented(root: griffe.Module) -> list[str]:
    """Public functions and classes without a docstring."""
    missing = []
    for module, names in public_names(root).items():
        for name in names:
            thing = root[f"{module}.{name}".removeprefix("sinksort.")]
            if thing.is_alias:
                thing = thing.final_target
            if (thing.is_function or thing.is_class) and not thing.docstring:
                missing.append(f"{module}.{name}")
    return missing


@functools.cache
def link_targets() -> dict[str, str]:
    """What a reader writes in a code span -> the anchor that documents it."""
    targets: dict[str, str] = {}
    for module, names in modules().items():
        targets[module] = module
        for name in names:
            anchor = f"{module}.{name}"
            targets[anchor] = anchor
            targets[anchor.removeprefix("sinksort.")] = anchor
            if not module.startswith(IN_FULL):
                targets.setdefault(name, anchor)
    for anchor in INTERNALS:
        targets[anchor] = targets[anchor.removeprefix("sinksort.")] = anchor
    for plan in ("Plan", "SmoothPlan"):
        for method in package()[plan].members:
            if not method.startswith("_"):
                targets[f"{plan}.{method}"] = f"sinksort.{plan}.{method}"
    return targets


#: Behind the public names, for the page on the mathematics.
INTERNALS = (
    "sinksort.core.squash.normalize",
    "sinksort.core.squash.standardize",
    "sinksort.core.problem.pose",
    "sinksort.core.problem.Problem",
    "sinksort.core.solvers.start.staircase_potentials",
    "sinksort.core.semidual",
    "sinksort.core.semidual.c_transform",
    "sinksort.core.semidual.log_density",
    "sinksort.core.semidual.column_sums",
    "sinksort.core.semidual.hessian_factor",
    "sinksort.core.semidual.newton_step",
    "sinksort.core.solvers.newton.newton_loop",
    "sinksort.core.gradients",
    "sinksort.core.gradients.attach",
    "sinksort.linear.rules",
    "sinksort.linear.grid",
    "sinksort.linear.band.blocks",
)


#: A link to a file of the repository -> where the same is on the site.
ON_THE_SITE = (
    (re.compile(r"\]\(((?:\.\./)*)\.\./benchmarks/results/"), r"](\1benchmarks/"),
    (re.compile(r"\]\(((?:\.\./)*)\.\./src/sinksort/core/options\.py\)"), r"](\1reference/sinksort.md#options)"),
    (re.compile(r"(\]\([^)\s]*notebooks/[^)\s]+)\.ipynb\)"), r"\1.md)"),
)


def on_the_site(text: str) -> str:
    """Markdown whose links lead to pages of the site. As it is written, they lead to files of the repository."""
    for pattern, there in ON_THE_SITE:
        text = pattern.sub(there, text)
    return text


def linked(text: str) -> str:
    """Markdown in which every code span that names something public leads to where it is documented."""

    def link(match: re.Match[str]) -> str:
        anchor = link_targets().get(match[2])
        return f"[{match[0]}][{anchor}]" if anchor else match[0]

    lines, fenced = [], False
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        plain = fenced or line.startswith(("#", "    "))
        lines.append(line if plain else SPAN.sub(link, line))
    return "\n".join(lines)
