"""What an experiment leaves on disk: its knobs, a checkpoint while it runs, and one file for each finished unit.

A unit is one (experiment, case, method, seed). Everything is written whole or not at all (to a temporary file first,
then renamed), so a killed run leaves nothing half-written. Checkpoints hold tensors and plain numbers only and are
read with ``weights_only=True``: loading one runs no code.

    out/<experiment>/knobs.json
    out/<experiment>/units/<case>--<method>--seed<k>.json
    out/<experiment>/checkpoints/<case>--<method>.pt         while that method trains
    out/<experiment>/checkpoints/<case>--<method>.lock       the same, locked by the process that trains it
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import glob
import io
import json
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

if sys.platform != "win32":  # where processes that share a folder do not know of each other
    import fcntl


def write_atomic(path: Path, content: bytes) -> None:
    """``content`` appears under ``path`` whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def from_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and run the experiment again.") from error


@dataclass(frozen=True)
class Store:
    """The folder of one experiment."""

    folder: Path

    def open(self, knobs: Any, *, fresh: bool = False, only: str = "*") -> None:
        """Save the knobs beside the results; results of other knobs in the same folder are an error.

        Asking for more or fewer runs is no difference: each run stands for itself. ``fresh`` removes what there is of
        the cases and methods of which "case/method" matches ``only``.
        """
        there = [*self.folder.glob("units/*.json"), *self.folder.glob("checkpoints/*.pt")]
        removed = [path for path in there if _matches(path, only)] if fresh else []
        if fresh:
            self._require_nobody_at_work(only)
        path = self.folder / "knobs.json"
        wanted = json.loads(as_json(dataclasses.asdict(knobs)))
        if path.exists() and (not fresh or len(removed) < len(there)):
            found = from_json(path)
            differ = [key for key in wanted if key != "runs" and found.get(key) != wanted[key]]
            if differ:
                told = ", ".join(f"{key} = {found.get(key)} there, {wanted[key]} now" for key in differ)
                raise ValueError(
                    f"{self.folder} holds results of other settings ({told}); choose another --out, "
                    f"or start over with --fresh{'' if only == '*' else ', but not with --only'}."
                )
        for old in removed:
            old.unlink(missing_ok=True)
        write_atomic(path, as_json(wanted))

    # ---- processes that share the folder

    @contextlib.contextmanager
    def alone(self, case: str, method: str, *, wait: bool) -> Iterator[bool]:
        """Whether no other process trains this method; none does until the end of the block then.

        ``wait``: until no other process does. The lock of a process that is killed goes with it.
        """
        if sys.platform == "win32":
            yield True
            return
        lock = self.folder / "checkpoints" / f"{case}--{method}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            while True:
                file = held.enter_context(lock.open("a"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    yield False
                    return
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                        break  # else whoever had it before has removed the file
            try:
                yield True
            finally:
                lock.unlink(missing_ok=True)

    def _require_nobody_at_work(self, only: str) -> None:
        for lock in self.folder.glob("checkpoints/*.lock"):
            case, _, method = lock.stem.partition("--")
            if _matches(lock, only):
                with self.alone(case, method, wait=False) as alone:
                    if not alone:
                        raise ValueError(
                            f"another process is training {case}/{method} in {self.folder}; "
                            "wait until it has ended, or choose another --out."
                        )

    # ---- units

    def unit(self, case: str, method: str, seed: int) -> Path:
        return self.folder / "units" / f"{case}--{method}--seed{seed}.json"

    def missing(self, case: str, method: str, seeds: Sequence[int]) -> list[int]:
        """The seeds that have no finished unit."""
        return [seed for seed in seeds if not self.unit(case, method, seed).exists()]

    def units(self) -> Iterator[dict[str, Any]]:
        """All finished units, in the order of their names."""
        for path in sorted((self.folder / "units").glob("*.json")):
            yield from_json(path)

    # ---- checkpoints

    def checkpoint(self, case: str, method: str) -> Checkpoint:
        return Checkpoint(self.folder / "checkpoints" / f"{case}--{method}.pt")

    def sweep(self, case: str, method: str) -> None:
        """Remove what runs of this method that were killed while they wrote have left. Only one process has them."""
        name = glob.escape(f"{case}--{method}")
        for pattern in (f"checkpoints/.{name}.pt.*.part", f"units/.{name}--seed*.json.*.part"):
            for part in self.folder.glob(pattern):
                part.unlink(missing_ok=True)


def _matches(path: Path, only: str) -> bool:
    """Whether a file is one of a "case/method" that matches a pattern."""
    case, _, rest = path.stem.partition("--")
    return fnmatch.fnmatch(f"{case}/{rest.partition('--')[0]}", only)


@dataclass(frozen=True)
class Checkpoint:
    """The state after the last epoch that was saved, as one file."""

    path: Path

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomic(self.path, buffer.getvalue())

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The saved state, or None when there is none."""
        if not self.path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, map_location=device, weights_only=True)
        except (RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError) as error:
            raise ValueError(
                f"{self.path} is not a checkpoint of this program ({type(error).__name__}); "
                "delete it, or start over with --fresh."
            ) from error
        return state

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
