"""The notebook of the site: its cells run without Jupyter, and it becomes a page.

``python docs/site/notebook.py docs/playground.ipynb`` runs the cells and stores what they print.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import attrs

VARIES = "varies"
"""The tag of cells whose output differs from run to run, such as times."""


@attrs.frozen
class Output:
    """What a cell gave: the text it printed, and its last value as text and, where it has such a form, as HTML."""

    printed: str = ""
    text: str | None = None
    html: str | None = None


def cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook file."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def varies(cell: dict[str, Any]) -> bool:
    """Return whether the output of a cell may differ."""
    return VARIES in cell["metadata"].get("tags", ())


def execute(code: str, name: str, namespace: dict[str, Any]) -> Output:
    """Run a cell as Jupyter does: the value of a last expression is its result."""
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        del tree.body[-1]
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    if value is None:
        return Output(printed.getvalue())
    html = getattr(value, "_repr_html_", None)
    return Output(printed.getvalue(), repr(value), html() if html is not None else None)


def stored(cell: dict[str, Any]) -> Output:
    """Return the output that the file has for a cell."""
    printed, text, html = "", None, None
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            printed += "".join(output["text"])
        else:
            text = "".join(output["data"]["text/plain"])
            html = "".join(output["data"]["text/html"]) if "text/html" in output["data"] else None
    return Output(printed, text, html)


def store(cell: dict[str, Any], output: Output, count: int) -> None:
    """Put an output into a cell, in the form of the notebook format, version 4."""
    cell["execution_count"] = count
    cell["outputs"] = []
    if output.printed:
        cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": output.printed.splitlines(True)})
    if output.text is not None:
        data = {"text/plain": output.text.splitlines(True)}
        if output.html is not None:
            data["text/html"] = output.html.splitlines(True)
        cell["outputs"].append(
            {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        )


def page(path: Path) -> str:
    """Return a notebook as a Markdown page."""
    parts = []
    for cell in cells(path):
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        output = stored(cell)
        parts.append(f"```python\n{source}\n```")
        text = output.printed + (output.text or "" if output.html is None else "")
        if text.strip():
            parts.append(f"```text\n{text.rstrip()}\n```")
        if output.html is not None:
            parts.append(f'<div class="output">\n{output.html}\n</div>')
    return "\n\n".join(parts) + "\n"


def main(path: Path) -> None:
    """Run a notebook and store its outputs."""
    document = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code, 1):
        store(cell, execute("".join(cell["source"]), f"cell {count}", namespace), count)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
