"""Kernels of Triton in files: what keeps them while kernels of this package are compiled, in place of Triton's cache.

Triton looks at no checksum. A damaged file of a kernel makes every launch raise in every process, or computes something
else. And Triton reads what is in its folder (TRITON_CACHE_DIR, or ~/.triton/cache), whoever can write to it. Here each
file has its checksum in a file beside it, since Triton opens the files itself; ``cache`` says which folders are safe.

Kernels of others are kept as before.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton.runtime.cache import CacheManager, FileCacheManager

from ... import cache

_MANAGER = "TRITON_CACHE_MANAGER"  #: names the class of the cache, in every version of Triton
_lock = threading.Lock()
_inside = 0  #: how many threads are in ``kept_with_checksums``


@contextlib.contextmanager
def kept_with_checksums() -> Iterator[None]:
    """What Triton compiles in here is kept by ``KernelCache``, unless somebody has named another cache."""
    global _inside  # noqa: PLW0603
    ours = f"{__name__}:{KernelCache.__name__}"
    with _lock:
        if _MANAGER not in os.environ:
            os.environ[_MANAGER] = ours
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and os.environ.get(_MANAGER) == ours:
                del os.environ[_MANAGER]


@functools.cache
def _folder(wanted: str) -> Path:
    return cache.safe_folder(Path(wanted)) or cache.temporary_folder()


class KernelCache(CacheManager):  # type: ignore[misc]
    """The files of one kernel, which go by a key that names its source, options and versions."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        # Kernels that somebody dumps, or overrides with such files, are none that are kept.
        self._other = FileCacheManager(key, override=override, dump=dump) if override or dump else None
        self._folder = Path() if self._other else _folder(_wanted()) / key

    def get_file(self, filename: str) -> str | None:
        if self._other is not None:
            return self._other.get_file(filename)
        path = self._folder / filename
        return str(path) if self._content(path) is not None else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        if self._other is not None:
            return self._other.put(data, filename, binary=binary)
        content = data if isinstance(data, bytes) else str(data).encode()
        try:
            return _written(self._folder / filename, content)
        except OSError as error:
            cache.say_unwritable(self._folder, error)
            return _written(cache.temporary_folder() / self._folder.name / filename, content)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a kernel by name, if all of them are there and whole."""
        names = self._content(self._folder / f"{filename}.group")
        if names is None:
            return None
        found = {name: self.get_file(name) for name in json.loads(names)}
        return {name: path for name, path in found.items() if path is not None} if all(found.values()) else None

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return self.put(json.dumps(sorted(group)), f"{filename}.group")

    def _content(self, path: Path) -> bytes | None:
        """Of a file that is whole. One without a checksum was not finished, or not put here by us."""
        try:
            content, expected = path.read_bytes(), _beside(path).read_bytes()
        except OSError:
            return None
        if cache.checksum(content) == expected:
            return content
        cache.say_damaged(path)
        return None


def _written(path: Path, content: bytes) -> str:
    path.parent.mkdir(exist_ok=True)
    cache.replace(path, content)
    cache.replace(_beside(path), cache.checksum(content))
    return str(path)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _wanted() -> str:
    try:
        from triton import knobs
    except ImportError:  # Triton 3.3 and before
        from triton.runtime.cache import default_cache_dir

        return os.environ.get("TRITON_CACHE_DIR", "").strip() or default_cache_dir()
    return knobs.cache.dir
