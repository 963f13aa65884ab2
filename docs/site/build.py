"""Build the site: ``python docs/site/build.py`` leaves it in build/site. Warnings are errors.

The sources are gathered in build/docs: the pages of docs/, the notebook as a page, the reference, the examples with
their code, and the list of changes. The finished pages must load nothing from outside.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

import reference
from notebook import page as notebook_page
from offline import outside
from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).resolve().parents[2]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
SOURCE, OUTPUT = ROOT / "build" / "docs", ROOT / "build" / "site"


def inside(text: str) -> str:
    """Return a page with its links to examples and to the notebook leading to their pages on the site."""
    text = text.replace("](../examples/README.md)", "](examples/index.md)").replace(
        "](playground.ipynb)", "](playground.md)"
    )
    return re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", text)


def example_page(path: Path) -> str:
    """Return an example as a page: what it says of itself, and its code."""
    code = path.read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(code)) or ""
    start = code.index('"""', code.index('"""') + 3) + 3
    return f"# {path.stem}.py\n\n{doc}\n\n```python\n{code[start:].strip()}\n```\n"


def gather() -> None:
    """Write the sources of the site, all anew."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(DOCS / "figures", SOURCE / "figures")
    for path in sorted(DOCS.glob("*.md")):
        put(path.name, inside(path.read_text(encoding="utf-8")))
    put("playground.md", notebook_page(DOCS / "playground.ipynb"))
    shutil.copy(DOCS / "playground.ipynb", SOURCE)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    put("changes.md", changes.replace("](docs/", "](").replace("](examples/README.md)", "](examples/index.md)"))
    (SOURCE / "examples").mkdir()
    scripts = sorted(EXAMPLES.glob("*.py"))
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8").replace("[`deploy`](deploy)", "`examples/deploy`")
    index = re.sub(r"\]\((\w+)\.py\)", r"](\1.md)", index)
    tree = "\n".join(path.stem for path in scripts)
    put("examples/index.md", f"{index}\n:::{{toctree}}\n:hidden:\n\n{tree}\n:::\n")
    for path in scripts:
        put(f"examples/{path.stem}.md", example_page(path))
    reference.write(SOURCE / "reference")


def put(name: str, text: str) -> None:
    """Write one source of the site."""
    (SOURCE / name).write_text(text, encoding="utf-8")


def main() -> int:
    """Build the site; returns the exit status."""
    gather()
    # no page of an earlier build stays, and no warning of one that failed is forgotten
    shutil.rmtree(OUTPUT, ignore_errors=True)
    status = sphinx(["-W", "--keep-going", "-q", "-c", str(DOCS / "site"), "-b", "html", str(SOURCE), str(OUTPUT)])
    for path in sorted(OUTPUT.rglob("*")):
        if path.suffix in (".html", ".css", ".js"):
            for found in outside(path.read_text(encoding="utf-8")):
                print(f"{path}: loads {found} from outside", file=sys.stderr)
                status = 1
    if status == 0:
        print(f"the site is in {OUTPUT.relative_to(ROOT)}: open index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
