"""What the site is built from: the pages of docs/, the notebook as a page, the reference, the rooms, the examples, the
changes."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import reference
from notebook import page as notebook_page

ROOT = Path(__file__).resolve().parents[2]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"


PACKAGE = ROOT / "gtrace"
ROOMS = {path: "-".join(path.parent.relative_to(PACKAGE).parts) for path in sorted(PACKAGE.rglob("README.md"))}
"""The README of each room, and the name of its page."""


def inside(text: str) -> str:
    """Return a page of docs/ with its links leading to pages of the site."""
    text = text.replace("](../examples/README.md)", "](examples/index.md)").replace(
        "](playground.ipynb)", "](playground.md)"
    )
    text = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", text)
    return of_rooms(text, DOCS, "rooms/")


def of_rooms(text: str, folder: Path, prefix: str) -> str:
    """Return a page with its links to rooms leading to their pages. Names of code files stay, without a link.

    Args:
        folder: of the page, for relative links.
        prefix: the folder of the rooms, seen from the page's place on the site.
    """

    def link(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target in ROOMS:
            return f"[{found[1]}]({prefix}{ROOMS[target]}.md{found[3] or ''})"
        if DOCS in target.parents:
            return f"[{found[1]}](../{target.relative_to(DOCS)}{found[3] or ''})" if folder != DOCS else found[0]
        return found[1] if PACKAGE in target.parents else found[0]

    return re.sub(r"\[([^]]+)\]\(([\w./-]+)(#[\w-]+)?\)", link, text)


def example_page(path: Path) -> str:
    """Return an example as a page: what it says of itself, and its code."""
    code = path.read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(code)) or ""
    start = code.index('"""', code.index('"""') + 3) + 3
    return f"# {path.stem}.py\n\n{doc}\n\n```python\n{code[start:].strip()}\n```\n"


def gather(folder: Path) -> None:
    """Write the sources of the site into a folder, all anew."""
    shutil.rmtree(folder, ignore_errors=True)

    def put(name: str, text: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    shutil.copytree(DOCS / "figures", folder / "figures")
    for path in sorted(DOCS.glob("*.md")):
        put(path.name, inside(path.read_text(encoding="utf-8")))
    put("playground.md", notebook_page(DOCS / "playground.ipynb"))
    shutil.copy(DOCS / "playground.ipynb", folder)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    put("changes.md", changes.replace("](docs/", "](").replace("](examples/README.md)", "](examples/index.md)"))
    shutil.copytree(EXAMPLES / "figures", folder / "examples" / "figures")
    scripts = sorted(EXAMPLES.glob("*.py"))
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8").replace("[`deploy`](deploy)", "`examples/deploy`")
    index = re.sub(r"\]\((\w+)\.py\)", r"](\1.md)", index)
    tree = "\n".join(path.stem for path in scripts)
    put("examples/index.md", f"{index}\n:::{{toctree}}\n:hidden:\n\n{tree}\n:::\n")
    for path in scripts:
        put(f"examples/{path.stem}.md", example_page(path))
    for path, name in ROOMS.items():
        put(f"rooms/{name}.md", of_rooms(path.read_text(encoding="utf-8"), path.parent, ""))
    tree = "\n".join(ROOMS.values())
    put("rooms/index.md", f"# The rooms\n\nWhat each folder of the code holds.\n\n:::{{toctree}}\n\n{tree}\n:::\n")
    reference.write(folder / "reference")
