"""Build the site: ``python docs/site/build.py`` leaves it in build/site. Warnings are errors.

The sources are gathered in build/docs. The finished pages must load nothing from outside.
"""

from __future__ import annotations

import shutil
import sys

from offline import outside
from sources import DOCS, ROOT, gather
from sphinx.cmd.build import main as sphinx

SOURCE, OUTPUT = ROOT / "build" / "docs", ROOT / "build" / "site"


def main() -> int:
    """Build the site; returns the exit status."""
    gather(SOURCE)
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
