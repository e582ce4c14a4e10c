"""Notebooks: run them, and show them on the site as ordinary pages.

python docs/scripts/notebooks.py            run all, and write their outputs into them
python docs/scripts/notebooks.py operators  only this one
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def as_markdown(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page, and its pictures by name."""
    notebook = nbformat.read(path, as_version=4)
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            text, picture = shown(output)
            if picture:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = picture
                parts.append(f"![Output of the code above]({name})")
            elif text:
                parts.append(f"```text\n{text}\n```")
    parts.insert(1, f"*Download this page as a [notebook]({path.name}).*")
    return "\n\n".join(parts) + "\n", pictures


def shown(output: NotebookNode) -> tuple[str, bytes]:
    """The text, or else the picture, of an output."""
    if output.output_type == "stream":
        return str(output.text).rstrip(), b""
    data = output.get("data", {})
    if "image/png" in data:
        return "", base64.b64decode(data["image/png"])
    return str(data.get("text/plain", "")).rstrip(), b""


def run(path: Path) -> NotebookNode:
    """The notebook after a fresh run. Its metadata say nothing about the machine or the moment."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    quiet = Config({"ConnectionFileMixin": {"transport": "ipc"}})  # a kernel that listens to no port
    inline = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # pictures become outputs
    options = {"timeout": 120, "kernel_name": "python3", "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, config=quiet, **options).execute(env=inline)
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _of_the_first_call(output)]
    return notebook


def _of_the_first_call(output: NotebookNode) -> bool:
    """Whether this is what who calls a kernel for the first time on a machine is told."""
    told = ("Kernels for the CPU are being compiled", "Compiling ", "Compiled ")
    return output.get("name") == "stderr" and all(line.startswith(told) for line in output.text.splitlines())


if __name__ == "__main__":
    names = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    for name in names:
        target = FOLDER / f"{name}.ipynb"
        nbformat.write(run(target), target)
        print(f"{target.relative_to(FOLDER.parent)}: {target.stat().st_size / 1000:.0f} kB")
