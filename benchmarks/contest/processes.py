"""The coordinator's side of a contestant's process: start it, ask it, give up on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from peers import Peer, Site

BENCHMARKS = Path(__file__).resolve().parent.parent
_NO_MEMORY = re.compile(
    r"out of memory|bad_alloc|resource.?exhausted|can't allocate|cannot allocate|not enough memory|unable to allocate",
    re.IGNORECASE,
)


class ContestantError(Exception):
    """Why there is no number: text for the table, and whether larger problems would only be worse."""

    def __init__(self, reason: str, *, grows: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.grows = reason, grows


@dataclass(frozen=True)
class Means:
    """What every process gets, the same for all."""

    site: Site
    threads: int
    memory: int  #: bytes
    logs: Path
    cache: Path  #: of compiled programs
    kernels: Path | None = None  #: where all that is compiled is kept, if it is not to be found again


@dataclass
class Process:
    """A contestant's process; ask it and it is there."""

    peer: Peer
    means: Means
    version: str = ""
    _running: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _pipe: Connection | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        return self._running is not None

    def start(self, patience: float) -> None:
        """Start it, unless it is there, and import the library."""
        if self._running is None:
            self._launch()
            self.version = self.ask("load", timeout=patience)

    def ask(self, method: str, *arguments: Any, timeout: float) -> Any:
        """What a method of ``worker.Contestant`` returns; an error of ours when it raises, dies or takes too long."""
        assert self._pipe is not None, "start comes first"
        try:
            self._pipe.send((method, arguments))
            if not self._pipe.poll(timeout):
                self.kill()
                raise ContestantError(f"> {timeout:g} s", grows=True)
            status, answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise self._death() from None
        if status == "ok":
            return answer
        kind, text = answer
        if kind in ("MemoryError", "OutOfMemoryError") or _NO_MEMORY.search(text):
            self.kill()  # what it holds may not come back
            raise ContestantError("out of memory", grows=True)
        raise ContestantError(f"raises {kind}: {_short(text)}" if text else f"raises {kind}")

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            if self._pipe is not None:
                self._pipe.close()
        self._running = self._pipe = None

    def _launch(self) -> None:
        ours, theirs = Pipe()
        means, site = self.means, self.means.site
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        options = {
            "device": site.device,
            "checkouts": dict(site.checkouts),
            "memory": means.memory,
            "cores": cores[: means.threads] if site.device == "cpu" and means.threads < len(cores) else [],
        }
        means.logs.mkdir(parents=True, exist_ok=True)
        with self._log().open("wb") as log:
            self._running = subprocess.Popen(
                [sys.executable, "-m", "contest.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(),
            )  # fmt: skip
        theirs.close()
        ours.send((self.peer, options))
        self._pipe = ours

    def _environment(self) -> dict[str, str]:
        threads = str(self.means.threads)
        pools = ("OMP", "MKL", "OPENBLAS", "NUMBA")
        own = {f"{pool}_NUM_THREADS": threads for pool in pools} | {
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "VERSUS_JAX_CACHE": str(self.means.cache),
            "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        if self.means.kernels is not None:
            variables = ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VERSUS_JAX_CACHE")
            own |= {name: str(self.means.kernels / name.split("_")[0].lower()) for name in variables}
            own |= {"CUDA_CACHE_PATH": str(self.means.kernels / "cuda")}
        if self.means.site.device == "cpu":
            own |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        return {**os.environ, **own}

    def _log(self) -> Path:
        return self.means.logs / (re.sub(r"\W+", "-", self.peer.name) + ".log")

    def _death(self) -> ContestantError:
        assert self._running is not None
        code = self._running.wait()
        self.kill()
        said = self._log().read_text(encoding="utf-8", errors="replace")[-4000:]
        if code == -signal.SIGKILL or _NO_MEMORY.search(said):
            return ContestantError("out of memory", grows=True)
        return ContestantError(f"died ({signal.Signals(-code).name if code < 0 else f'exit status {code}'})")


def _short(text: str, limit: int = 110) -> str:
    """One line without folders of this machine, that fits into a cell of a table."""
    text = re.sub(r"(?:/[\w.+-]+)+/", "", " ".join(text.split())).replace("|", "/")
    return text if len(text) <= limit else text[: limit - 3] + "..."
