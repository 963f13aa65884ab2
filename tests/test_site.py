"""The site without Sphinx: its navigation, links, figures, reference and the page of benchmarks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS / "site"), str(ROOT / "benchmarks")]
import figures  # noqa: E402
import notebook  # noqa: E402
import offline  # noqa: E402
import page as benchmarks  # noqa: E402
import reference  # noqa: E402

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")),
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("*.ipynb")),
]
MADE = {"playground", "examples/index", "reference/index", "changes"}
"""Pages of the site that are made from something else."""


def text(path: Path) -> str:
    """Return a page as Markdown, without its code."""
    found = notebook.page(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", found, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text(path), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = 0
        while (name := f"{slug}-{count}" if count else slug) in found:
            count += 1
        found.add(name)
    return found


def broken_links(path: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    broken = []
    for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", text(path)):
        file, _, anchor = target.partition("#")
        other = path.parent / file if file else path
        if not other.exists() or (anchor and anchor not in anchors(other)):
            broken.append(f"{path.name}: {target}")
    return broken


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_relative_links_and_anchors_exist(path):
    assert broken_links(path) == []


def test_a_broken_link_and_a_missing_anchor_are_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# One `two`, three\n[a](#one-two-three) [b](#four) [c](a.md#one-two-three) [d](b.md)\n")
    assert broken_links(page) == ["a.md: #four", "a.md: b.md"]


def test_every_page_is_in_the_navigation_once():
    lists = re.findall(r"^:::\{toctree\}\n(.*?)^:::$", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL)
    entries = [line for part in lists for line in part.splitlines() if line and not line.startswith(":")]
    names = [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
    assert sorted(names) == sorted({path.stem for path in DOCS.glob("*.md")} - {"index"} | MADE)


def test_figures_are_those_of_their_program():
    for path, svg in figures.files():
        assert path.read_text(encoding="utf-8") == svg, f"{path.name}: python docs/site/figures.py writes it"
    assert {path.name for path in figures.FOLDER.iterdir()} == {f"{name}.svg" for name in figures.FIGURES}


def test_figures_have_both_sets_of_colours_on_the_site():
    style = (DOCS / "site" / "static" / "site.css").read_text(encoding="utf-8").replace("; ", ";")
    assert figures.LIGHT in style and figures.DARK in style


def test_the_reference_describes_every_public_name_once():
    contents = reference.contents()
    entries = [entry for content in contents for _, listed in content.sections for entry in listed]
    names = [entry.name for entry in entries]
    assert len(names) == len(set(names)) > 1000
    described = reference.descriptions(contents)
    for space in reference.NAMESPACES:
        missing = [name for name in reference.public(space) if f"{space}.{name}" not in described]
        assert missing == [], space
    assert [entry.name for entry in entries if reference.describable(entry.value) and not entry.value.__doc__] == []


def test_pages_of_the_reference_are_in_its_index_and_have_entries():
    listed = " ".join(reference.GROUPS.values()).split()
    assert sorted(listed) == sorted(page.file for page in reference.PAGES)
    for content in reference.contents():
        assert content.sections, content.page.file
        expected = len(content.page.sections) or 1
        assert len(content.sections) - expected in (0, 1), [title for title, _ in content.sections]


def test_docstrings_become_text_without_markup():
    assert reference.escape("f(*x) is |x_| ** 2, `a*b` and ``__c__ * d``.") == (
        r"f(\*x) is \|x\_\| \*\* 2, `a*b` and ``__c__ * d``."
    )


@pytest.mark.parametrize(
    ("markup", "found"),
    [
        ('<script src="https://cdn.example/x.js"></script>', True),
        ("<img alt='' src=//cdn.example/x.png>", True),
        ('<link rel="stylesheet" href="http://cdn.example/x.css">', True),
        ("body { background: url(https://cdn.example/x.woff) }", True),
        ('@import "https://cdn.example/x.css";', True),
        ('fetch("https://cdn.example/x.json")', True),
        ('<a href="https://example.org">a page to read</a>', False),
        ('<svg xmlns="http://www.w3.org/2000/svg">', False),
        ('<script src="_static/x.js"></script>', False),
    ],
)
def test_what_pages_load_from_outside_is_found(markup, found):
    assert bool(offline.outside(markup)) is found


def test_the_page_of_benchmarks_is_that_of_the_results():
    assert benchmarks.PAGE.read_text(encoding="utf-8") == benchmarks.page()


def run_of(**row):
    rows = [{"what": "a|b", "peer": "p", "ours_s": 2e-6, "peer_s": 4e-6, "ratio": 0.5, "command": "make it"} | row]
    return {"machine": {"cpu_cores": 2}, "versions": {"torch": "2.13.0"}, "settings": {}, "rows": rows}


def test_results_become_a_table_below_their_command(tmp_path):
    path = tmp_path / "small_things.json"
    path.write_text(json.dumps(run_of(first_call_s=1.5, peak_bytes=3 * 2**20)), encoding="utf-8")
    section = benchmarks.page(tmp_path).removeprefix(benchmarks.HEAD).strip()
    assert section == (
        "## Small things\n\n- Machine: cpu cores 2\n- Versions: torch 2.13.0\n\n```sh\nmake it\n```\n\n"
        "| what | peer | gtrace | peer's time | ratio | first call | peak |\n|---|---|---:|---:|---:|---:|---:|\n"
        "| a\\|b | p | 2 us | 4 us | 0.50 | 1.5 s | 3.0 MiB |"
    )


@pytest.mark.parametrize("row", [{"ratio": 2.0}, {"ratio": 0.6}])
def test_results_with_a_ratio_of_other_times_are_refused(row):
    with pytest.raises(ValueError, match="row 0"):
        benchmarks.section(run_of(**row), "run")


@pytest.mark.parametrize("part", ["machine", "versions", "settings", "rows"])
def test_results_without_a_part_are_refused(part):
    run = run_of()
    del run[part]
    with pytest.raises(ValueError, match=f"{part} missing"):
        benchmarks.section(run, "run")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(12.3456, "12.3 s"), (0.0123456, "12.3 ms"), (0.9999e-6, "1 us"), (8.4e-7, "840 ns"), (1500.0, "1500 s")],
)
def test_times_have_three_digits_and_a_unit(seconds, shown):
    assert benchmarks.seconds(seconds) == shown
