"""Compiled kernels in files: damaged ones are compiled again, and nobody else's code is run."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sinksort.kernels import cache

KERNELS = Path(cache.__file__).parent
FUNCTIONS = "from .engine.compile import exact\n\n@exact\ndef twice(x):\n    return 2 * x\n"
PROGRAM = "from two.cpu.functions import twice\nprint(twice({}))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package with one function that is compiled as kernels are, and an empty folder for what is kept."""
    package = tmp_path / "two"
    (package / "cpu" / "engine").mkdir(parents=True)
    for name in ("cache.py", "cpu/engine/cache.py", "cpu/engine/compile.py", "cpu/engine/parts.py"):
        (package / name).write_text((KERNELS / name).read_text())
    (package / "cpu" / "functions.py").write_text(FUNCTIONS)
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    return kept


def started(kept: Path, argument: float, private: Path, package: Path) -> subprocess.Popen[str]:
    """A process that calls the function. What it keeps is in ``kept``; private folders are below ``private``."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(kept), "XDG_CACHE_HOME": str(private)}
    command = [sys.executable, "-B", "-c", PROGRAM.format(argument)]
    return subprocess.Popen(command, cwd=package, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def called(
    folder: Path, argument: float = 5, *, at: Path | None = None, private: Path | None = None
) -> tuple[str, str]:
    """(what the function returned, what was said)."""
    process = started(at or folder, argument, private or folder.parent / "private", folder.parent)
    answer, said = process.communicate()
    return answer.strip(), said


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "one bit": lambda content: content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:],
    "zeros": lambda content: bytes(len(content)),
    "something else": lambda content: b"<html>",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_noticed(
    damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "_said", set())
    content = bytes(range(256)) * 20
    for name in ("one", "two"):
        cache.write(tmp_path / name, content)
        assert cache.read(tmp_path / name) == content
        (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
        assert cache.read(tmp_path / name) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"The file {tmp_path / 'one'} of a compiled kernel is damaged. The kernel is compiled again."
    ]
    assert cache.read(tmp_path / "three") is None


def test_a_damaged_kernel_is_compiled_again(folder: Path) -> None:
    assert called(folder)[0] == "10"
    (path,) = kept(folder)
    for damage in ("one bit", "cut short"):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        answer, said = called(folder)
        assert answer == "10"
        assert said.count(f"The file {path} of a compiled kernel is damaged") == 1
        assert "being compiled" in said
    assert called(folder) == ("10", "")


class Bomb:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_that_does_not_fit_its_checksum(folder: Path, tmp_path: Path) -> None:
    called(folder)
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    for path in kept(folder):
        path.write_bytes(path.read_bytes()[:64] + bomb)
        assert called(folder)[0] == "10"
        path.write_bytes(bomb)
        assert called(folder)[0] == "10"
    assert not (tmp_path / "exploded").exists()


def with_a_bomb(path: Path, bomb: Bomb) -> None:
    """What somebody writes who knows how: the checksum is right."""
    content = path.read_bytes()[32:64] + pickle.dumps(bomb)
    path.write_bytes(cache.checksum(content) + content)


def test_a_folder_to_which_others_can_write_is_not_used(folder: Path, tmp_path: Path) -> None:
    called(folder)
    (path,) = kept(folder)
    with_a_bomb(path, Bomb(tmp_path / "exploded"))
    before = path.read_bytes()
    folder.chmod(0o777)
    answer, said = called(folder)
    assert answer == "10"
    assert not (tmp_path / "exploded").exists()
    assert said.count(f"Compiled kernels cannot be kept in {folder}, because other users can write to it") == 1
    assert "its mode is 777; chmod go-w would change that" in said
    assert path.read_bytes() == before
    private = tmp_path / "private" / "sinksort"
    assert f"They are kept in {private}" in said
    assert [stat.S_IMODE(inside.stat().st_mode) for inside in (private, *private.iterdir())] == [0o700, 0o700]
    assert "being compiled" not in called(folder)[1]  # what is in the private folder is read


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_which_folders_are_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "private"))
    for name, inside in (("one", ""), ("two", "inside")):
        wanted = tmp_path / name
        wanted.mkdir()
        wanted.chmod(mode)
        assert (tmp_path / "private") in (cache.safe_folder(wanted, inside) or tmp_path).parents
        assert f"cannot be kept in {wanted}, because other users can write to it (its mode is {mode:o};" in caplog.text
        wanted.chmod(0o755)
        cache.safe_folder.cache_clear()
        assert cache.safe_folder(wanted, inside) == wanted / inside


def test_a_file_to_which_others_can_write_is_not_used(folder: Path, tmp_path: Path) -> None:
    called(folder)
    (path,) = kept(folder)
    with_a_bomb(path, Bomb(tmp_path / "exploded"))
    path.chmod(0o666)
    answer, said = called(folder)
    assert answer == "10"
    assert not (tmp_path / "exploded").exists()
    assert f"Others can write to {path}, so it is not used" in said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_in_which_others_cannot_rename_is_used(folder: Path) -> None:
    """As /tmp is, which many use for NUMBA_CACHE_DIR: what is kept is in a private folder inside."""
    folder.chmod(0o1777)
    assert "because" not in called(folder)[1]
    (inside,) = folder.iterdir()
    assert stat.S_IMODE(inside.stat().st_mode) == 0o700
    assert len(kept(inside)) == 1


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir(mode=0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ours))
    me = os.geteuid()
    real = Path.stat

    def other(path: Path, **options: bool) -> os.stat_result:
        found = real(path, **options)
        return os.stat_result((*found[:4], me + 1, *found[5:])) if path == theirs else found

    monkeypatch.setattr(Path, "stat", other)
    folder = cache.safe_folder(theirs)
    assert folder is not None
    assert folder.parent == ours / "sinksort"
    assert f"cannot be kept in {theirs}, because it belongs to another user. They are kept in {folder}" in caplog.text


def test_a_folder_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    """The private one is used; and if that cannot be written either, kernels are compiled in each process."""
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "kept"
    answer, said = called(folder, at=nowhere)
    assert answer == "10"
    assert said.count(f"cannot be kept in {nowhere}, because it cannot be written (Not a directory)") == 1
    assert len(kept(tmp_path / "private")) == 1
    answer, said = called(folder, at=nowhere, private=nowhere)
    assert answer == "10"
    assert said.count("cannot be kept") == said.count("They are not kept.") == 1


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(cache, "_said", set())

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fdopen", full)
    for _ in range(2):
        cache.write(tmp_path / "a", b"content")
    assert list(tmp_path.iterdir()) == []
    assert caplog.text.count(f"Compiled kernels cannot be kept in {tmp_path}: No space left on device.") == 1


def test_two_processes_at_once(folder: Path) -> None:
    """Both compile, for different types, and what each has made is kept."""
    processes = [started(folder, argument, folder.parent, folder.parent) for argument in (5, 2.5)]
    assert [process.communicate()[0].strip() for process in processes] == ["10", "5.0"]
    assert [called(folder, argument) for argument in (5, 2.5)] == [("10", ""), ("5.0", "")]


def test_what_is_kept_of_other_sources_is_compiled_again(folder: Path) -> None:
    called(folder)
    (path,) = kept(folder)
    source = folder.parent / "two" / "cpu" / "functions.py"
    source.write_text(source.read_text().replace("2 * x", "3 * x"))
    answer, said = called(folder)
    assert answer == "15"
    assert "being compiled" in said
    assert "damaged" not in said
    assert kept(folder) == [path]
