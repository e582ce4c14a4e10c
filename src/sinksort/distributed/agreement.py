"""All ranks make the same call, or all of them hear what differs.

Ranks that disagree about a size or a number would wait for each other for ever, or mix up their answers in silence. So
a call begins with a few bytes from everyone: a digest of the arguments that must be the same, whether a rank has found
something wrong with its own, and how many values it holds. Only when digests differ are the arguments themselves sent
round, to be shown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from .collectives import Everyone


def agree(
    everyone: Everyone, operator: str, call: Mapping[str, object], n: int, trouble: Exception | None
) -> list[int]:
    """How many values each rank holds, once it is certain that all ranks make the same call.

    ``call`` maps the names of arguments to what must be the same everywhere; ``trouble`` is what this rank has to say
    about its own part.
    """
    said = json.dumps({"operator": operator, **{name: _shown(value) for name, value in call.items()}})
    digest = int(_digest(said), 16)
    answers = everyone.gather([digest, trouble is not None, n])
    if any(troubled for _, troubled, _ in answers):
        texts = everyone.gather_text("" if trouble is None else f"{type(trouble).__name__}: {trouble}")
        if trouble is not None:
            raise trouble
        first = next(rank for rank, text in enumerate(texts) if text)
        raise RuntimeError(
            f"{operator} was called with arguments that are wrong on rank {first}, so no rank goes on. "
            f"Rank {first} says: {texts[first]}"
        )
    if len({digest for digest, _, _ in answers}) > 1:
        raise ValueError(_difference([json.loads(text) for text in everyone.gather_text(said)]))
    return [n for _, _, n in answers]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=7).hexdigest()


def _shown(value: object) -> str:
    """A long value is shown by its beginning, and told apart by a digest."""
    text = str(value)
    return text if len(text) <= 120 else f"{text[:80]}... (digest {_digest(text)})"


def _difference(calls: list[dict[str, str]]) -> str:
    """Which argument differs, and who says what.

    >>> _difference([{"operator": "soft_rank", "eps": "0.1"}, {"operator": "soft_rank", "eps": "0.2"}])
    'soft_rank must be called with the same eps on every rank of the group, got 0.1 on rank 0, 0.2 on rank 1.'
    """
    if len({call["operator"] for call in calls}) > 1:
        name, what = "operator", "sinksort.distributed must be called for the same operator"
    else:
        names = {name: None for call in calls for name in call}
        name = next(name for name in names if len({call.get(name) for call in calls}) > 1)
        what = f"{calls[0]['operator']} must be called with the same {name}"
    ranks: dict[str, list[str]] = {}
    for rank, call in enumerate(calls):
        ranks.setdefault(call.get(name, "none"), []).append(str(rank))
    parts = [f"{value} on rank{'s' * (len(who) > 1)} {', '.join(who)}" for value, who in ranks.items()]
    return f"{what} on every rank of the group, got {', '.join(parts)}."
