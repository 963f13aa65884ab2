"""Every python block of README.md, CONTRIBUTING.md and docs/*.md runs, and prints what the text block after it says.

So does every cell of the notebook: what it printed, and its last value, are stored in it.

The blocks of one file run in order, in one namespace, in a process of their own: a fork of one that has imported torch
and its compiler, which takes longer than most pages. A block with ``>>>`` prompts is a doctest. ``echo FILE | python
tests/test_docs.py`` runs one file by hand.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import doctest
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))
import notebook  # noqa: E402

FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Block:
    """A python block: its code, the line where that starts, and the output that the text block after it promises."""

    code: str
    line: int
    output: str | None


def blocks(text: str) -> list[Block]:
    """Return the python blocks of a Markdown text; only blank lines may come between one and its output."""
    found = list(FENCE.finditer(text))
    result = []
    for match, after in zip(found, [*found[1:], None], strict=False):
        if match["language"] == "python":
            follows = (
                after is not None and after["language"] == "text" and not text[match.end() : after.start()].strip()
            )
            line = text.count("\n", 0, match.start("body")) + 1
            result.append(Block(match["body"], line, after["body"] if follows and after is not None else None))
    return result


def run(path: Path) -> list[str]:
    """Run the blocks of a file; returns a description of each output that differs."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    problems = []
    for block in blocks(path.read_text(encoding="utf-8")):
        name = f"{path.name}:{block.line}"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if ">>>" in block.code:
                test = doctest.DocTestParser().get_doctest(block.code, namespace, name, str(path), block.line - 1)
                # the runner clears the namespace of the test it ran, unless told not to
                doctest.DocTestRunner(verbose=False).run(test, clear_globs=False)
                namespace.update(test.globs)
                expected = ""
            else:
                # blank lines in front: tracebacks show the line of the Markdown file
                exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), namespace)
                expected = block.output
        if expected is not None and printed.getvalue() != expected:
            diff = difflib.unified_diff(
                expected.splitlines(), printed.getvalue().splitlines(), "written", "printed", n=1
            )
            problems.append(f"{name}\n" + "\n".join(diff))
    return problems


def run_notebook(path: Path) -> list[str]:
    """Run the cells of a notebook; returns a description of each output that differs."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    problems = []
    for count, cell in enumerate((cell for cell in notebook.cells(path) if cell["cell_type"] == "code"), 1):
        found = notebook.execute("".join(cell["source"]), f"cell {count}", namespace)
        stored = notebook.stored(cell)
        if not notebook.varies(cell) and (found.printed, found.text) != (stored.printed, stored.text):
            problems.append(f"{path.name}, cell {count}: stored {stored}, now {found}")
    return problems


@pytest.fixture(scope="module")
def pages():
    """A process that runs pages: a path on a line in, JSON on a line out."""
    with subprocess.Popen([sys.executable, __file__], cwd=ROOT, stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", [*FILES, *NOTEBOOKS], ids=lambda path: path.name)
def test_blocks_run_and_print_what_the_text_says(path, pages):
    print(path, file=pages.stdin, flush=True)
    status, output = json.loads(pages.stdout.readline())
    assert status == 0, output


def test_a_wrong_output_and_a_wrong_doctest_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 2\nprint(x)\n```\n\n```text\n3\n```\n\n```python\n>>> x + 1\n4\n```\n", encoding="utf-8"
    )
    first, second = run(page)
    assert first.startswith("page.md:2") and "-3" in first and "+2" in first
    assert second.startswith("page.md:11")


def test_a_wrong_output_of_a_notebook_is_found(tmp_path):
    document = {"cells": [{"cell_type": "code", "metadata": {}, "source": ["x = 2\n", "print(x)\n", "x + 1"]}]}
    notebook.store(document["cells"][0], notebook.Output("2\n", "3"), 1)
    page = tmp_path / "page.ipynb"
    page.write_text(json.dumps(document), encoding="utf-8")
    assert run_notebook(page) == []
    notebook.store(document["cells"][0], notebook.Output("2\n", "4"), 1)
    page.write_text(json.dumps(document), encoding="utf-8")
    assert "cell 1" in run_notebook(page)[0]
    document["cells"][0]["metadata"]["tags"] = ["varies"]
    page.write_text(json.dumps(document), encoding="utf-8")
    assert run_notebook(page) == []


def test_text_after_prose_is_not_output():
    assert blocks("```python\nprint(1)\n```\nProse.\n```text\n2\n```\n")[0].output is None


def serve():
    """Run the pages whose paths are read, each in a fork, which ends as a program of its own would."""
    # before warnings become errors: torch's own imports may warn
    from gtrace.core.base import torch_internals

    torch_internals.COMPILE_FX.get()
    gc.freeze()
    warnings.simplefilter("error")
    for line in sys.stdin:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(300)
            os.dup2(theirs, 1)
            os.dup2(theirs, 2)
            path = Path(line.strip())
            found = (run_notebook if path.suffix == ".ipynb" else run)(path)
            print("\n\n".join(found), flush=True)
            atexit._run_exitfuncs()
            os._exit(bool(found))  # to take everything apart would copy it
        os.close(theirs)
        with open(ours) as file:
            output = file.read()
        print(json.dumps([os.waitpid(child, 0)[1], output]), flush=True)


if __name__ == "__main__":
    serve()
