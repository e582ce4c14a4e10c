"""Kernels of Triton in files: damaged ones are compiled again. Compiling needs no GPU, but another process than ours.

That process is this file, which compiles a kernel, spoils what is kept of it, and compiles again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sinksort.kernels import cache

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels.gpu.engine.cache import KernelCache, kept_with_checksums


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    said = subprocess.run(
        [sys.executable, "-m", "tests.kernels.gpu.test_engine_cache"],
        check=False, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[3], timeout=300,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr[-2000:]
    return {**json.loads(said.stdout), "said": said.stderr, "folder": str(folder)}


def test_a_damaged_kernel_of_triton_is_compiled_again(story: dict[str, Any]) -> None:
    assert story["fresh"]["compiled"]
    assert not story["kept"]["compiled"]
    assert {suffix for suffix, _ in story["damaged"]} >= {".cubin", ".ptx", ".json", ".group", ".sha256"}
    for suffix, again in story["damaged"]:
        assert again["compiled"], suffix
        assert again["cubin"] == story["fresh"]["cubin"], suffix
    assert story["said"].count("is damaged. The kernel is compiled again.") == 1
    assert story["folder"] in story["said"]


def test_kernels_of_others_are_kept_as_before(story: dict[str, Any]) -> None:
    assert story["other"]["compiled"]
    assert "TRITON_CACHE_MANAGER" not in os.environ


def test_another_cache_that_somebody_has_named_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_with_checksums():
        assert os.environ["TRITON_CACHE_MANAGER"] == "sinksort.kernels.gpu.engine.cache:KernelCache"
        with kept_with_checksums():
            pass
        assert "TRITON_CACHE_MANAGER" in os.environ
    assert "TRITON_CACHE_MANAGER" not in os.environ
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "mine:Cache")
    with kept_with_checksums():
        assert os.environ["TRITON_CACHE_MANAGER"] == "mine:Cache"
    assert os.environ["TRITON_CACHE_MANAGER"] == "mine:Cache"


def test_our_launches_are_compiled_with_it() -> None:
    import torch

    from sinksort.kernels.gpu.engine.launch import Recorder

    class Kernel:
        arg_names = ("x",)

        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *_args, **_options: seen.append(os.environ.get("TRITON_CACHE_MANAGER"))

    seen: list[str | None] = []
    x = torch.zeros(1)
    Recorder([x], [], (), None)(Kernel(), 1, x)
    assert seen == ["sinksort.kernels.gpu.engine.cache:KernelCache"]


def test_a_folder_of_triton_to_which_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    theirs.chmod(0o777)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(theirs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(ours))
    (theirs / "KEY").mkdir()
    (theirs / "KEY" / "file").write_bytes(b"theirs")
    (theirs / "KEY" / "file.sha256").write_bytes(cache.checksum(b"theirs"))
    kept = KernelCache("KEY")
    assert kept.get_file("file") is None
    path = Path(kept.put(b"ours", "file"))
    assert ours in path.parents
    assert kept.get_file("file") == str(path)
    assert f"Compiled kernels cannot be kept in {theirs}, because other users can write to it" in caplog.text


def test_triton_compiles_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads kernels from files, which are in a folder of this process then."""
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "kept"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(nowhere))
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere))
    for _ in range(2):
        kept = KernelCache("KEY")
        assert Path(kept.put("text", "a.ptx")).read_text() == "text"
    kept.put_group("a.json", {"a.ptx": "somewhere"})
    assert list(kept.get_group("a.json") or ()) == ["a.ptx"]
    assert caplog.text.count(f"cannot be kept in {nowhere}") == 1
    assert "They are not kept" in caplog.text


def test_a_disk_that_is_full_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "_said", set())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kept"))
    kept = KernelCache("KEY")
    replace = cache.replace

    def full(path: Path, content: bytes) -> None:
        if tmp_path in path.parents:
            raise OSError(28, "No space left on device")
        replace(path, content)

    monkeypatch.setattr(cache, "replace", full)
    assert Path(kept.put(b"code", "a.cubin")).read_bytes() == b"code"
    assert kept.get_file("a.cubin") is None
    assert f"Compiled kernels cannot be kept in {tmp_path / 'kept' / 'KEY'}: No space left on device." in caplog.text


def tell() -> None:
    """The story of a kernel, as JSON."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tests.offline import dot

    source = ASTSource(
        fn=dot,
        signature={"x": "*fp32", "y": "*fp32", "out": "*fp32", "AGREED": "constexpr"},
        constexprs={"AGREED": False},
    )

    def made() -> dict[str, Any]:
        before = {path: path.stat().st_mtime_ns for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")}
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
        after = {path: path.stat().st_mtime_ns for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")}
        return {"cubin": kernel.asm["cubin"].hex(), "compiled": before != after}

    with kept_with_checksums():
        story: dict[str, Any] = {"fresh": made(), "kept": made(), "damaged": []}
        for path in sorted(path for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*") if path.is_file()):
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            story["damaged"].append((path.suffix, made()))
    print(json.dumps({**story, "other": made()}))


if __name__ == "__main__":
    tell()
