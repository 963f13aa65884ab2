"""The site without Sphinx: its navigation, links, figures, reference and the page of benchmarks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from gtrace.core.base import errors

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS / "site"), str(ROOT / "benchmarks")]
import figures  # noqa: E402
import notebook  # noqa: E402
import offline  # noqa: E402
import page as benchmarks  # noqa: E402
import reference  # noqa: E402
import sources  # noqa: E402

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")),
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("*.ipynb")),
    *sources.ROOMS,
]
MADE = {"playground", "examples/index", "reference/index", "rooms/index", "changes"}
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


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_and_anchors_exist(path):
    assert broken_links(path) == []


def test_a_broken_link_and_a_missing_anchor_are_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# One `two`, three\n[a](#one-two-three) [b](#four) [c](a.md#one-two-three) [d](b.md)\n")
    assert broken_links(page) == ["a.md: #four", "a.md: b.md"]


def test_pictures_of_the_gathered_pages_are_there(tmp_path):
    sources.gather(tmp_path)
    pictures = [
        page.parent / target
        for page in tmp_path.rglob("*.md")
        for target in re.findall(r"!\[[^]]*\]\((?!\w+:)([^)\s]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(pictures) >= 3
    assert [str(path) for path in pictures if not path.exists()] == []


LONGEST = 30
"""Words of a sentence; a colon or a semicolon ends one too."""


def long_sentences(page: str) -> list[str]:
    """Return the sentences of a page without code that have too many words: not of tables, headings and comments."""
    prose = re.sub(r"^:::.*?^:::$|^(?: {4}|[|#<])[^\n]*", "", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "X", prose))
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", prose)
    found = [part for paragraph in paragraphs for part in re.split(r"[.!?:;][)\"*]*\s", paragraph)]
    return [" ".join(part.split()) for part in found if len(part.split()) > LONGEST]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sentences_are_short(path):
    if path.name != "jax-names.md":  # lists of names
        assert long_sentences(text(path)) == []


def test_a_long_sentence_is_found_and_a_list_or_a_table_is_none():
    words = "word " * 20
    assert len(long_sentences(f"One.\nA {words}{words}end. Two.\n")) == 1
    assert long_sentences(f"- {words}\n- {words}\n\n| {words} | {words} |\n\n{words}: {words}\n") == []


def test_the_page_of_errors_has_each_class():
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(errors.__all__) - {"GtraceError"}


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
    assert benchmarks.PAGE.read_text(encoding="utf-8") == benchmarks.filled(benchmarks.page())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_that_a_page_quotes_are_those_of_the_results(path):
    text = path.read_text(encoding="utf-8")
    assert benchmarks.filled(text) == text, "python benchmarks/page.py writes it"
    assert path in benchmarks.QUOTING or "<!-- figures: " not in text


def test_every_quoted_table_is_on_a_page():
    quoting = [path.read_text(encoding="utf-8") for path in benchmarks.QUOTING]
    names = {match[1] for text in quoting for match in benchmarks.QUOTE.finditer(text)}
    assert names == set(benchmarks.quotes.TABLES)


def test_a_changed_figure_and_an_unknown_table_are_found():
    page = "<!-- figures: summary -->\n0.01 s\n<!-- end of figures -->"
    assert "0.01 s" not in benchmarks.filled(page) and "commit" in benchmarks.filled(page)
    with pytest.raises(ValueError, match="expected one of summary"):
        benchmarks.filled(page.replace("summary", "other"))


def results(**changes):
    figures = [
        {
            "workload": "a|b",
            "side": "gt.jit",
            "samples": [1e-6, 2e-6, 3e-6],
            "unit": "s",
            "details": {"peak, bytes": 2**20},
        },
        {"workload": "a|b", "side": "jax.jit", "samples": [4e-6], "unit": "s", "details": {"first call, s": 1.5}},
    ]
    run = {
        "program": "dispatch", "date": "2026-11-26", "commit": "abc",
        "settings": {"quick": True, "rounds": 3, "json": None, "sizes": [1, 2]},
        "machine": {"cores": 2, "memory, MiB": 4096, "gpu": "none"},
        "versions": {"torch": "2.13.0"}, "left_out": ["no torch.compile"],
        "load": {"before": 0.0, "during": 0.0, "cores": 2}, "busy": False, "figures": figures,
    }  # fmt: skip
    return {"format": 1, "runs": [run | changes]}


def test_results_become_a_table_below_their_command(tmp_path):
    (tmp_path / "two_cores.json").write_text(json.dumps(results()), encoding="utf-8")
    section = benchmarks.page(tmp_path).removeprefix(benchmarks.HEAD).strip()
    assert (
        section
        == """## Two cores

- Machine: cores 2, memory 4096 MiB
- Versions: torch 2.13.0

### Dispatch

Measured on 2026-11-26, commit abc:

```sh
python benchmarks/dispatch.py --quick --rounds 3 --sizes 1 2
```

- no torch.compile

| workload | side | median | noise | gt.jit / this | peak | first call |
|---|---|---:|---:|---:|---:|---:|
| a\\|b | gt.jit | 2 us | 25% |  | 1.0 MiB |  |
|  | jax.jit | 4 us |  | 0.50 |  | 1.5 s |"""
    )


def test_results_of_a_busy_machine_say_so():
    assert "Other programs ran beside this run" in benchmarks.section(results(busy=True), "run")


def test_results_without_peers_have_no_ratios():
    figures = results()["runs"][0]["figures"][:1]
    assert "| workload | side | median | noise | peak |" in benchmarks.section(results(figures=figures), "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"program": "nothing"}, "no benchmarks/nothing.py"),
        ({"figures": []}, "dispatch has no figures"),
        ({"commit": ""}, "date and commit of dispatch"),
        ({"figures": [{"workload": "w", "side": "gtrace", "samples": [], "unit": "s", "details": {}}]}, "figures of w"),
    ],
)
def test_results_that_nobody_can_read_or_repeat_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        benchmarks.section(results(**changes), "run")


def test_results_of_another_format_or_of_two_machines_are_refused():
    with pytest.raises(ValueError, match="format 2"):
        benchmarks.section(results() | {"format": 2}, "run")
    two = {"format": 1, "runs": results()["runs"] + results(machine={"cores": 64})["runs"]}
    with pytest.raises(ValueError, match="one machine"):
        benchmarks.section(two, "run")


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (12.3456, "s", "12.3 s"), (0.0123456, "s", "12.3 ms"), (0.9999e-6, "s", "1 us"), (8.4e-7, "s", "840 ns"),
        (1500.0, "s", "1500 s"), (3 * 2**20, "bytes", "3.0 MiB"), (12345.0, "count", "12,345"), (0.51234, "", "0.512"),
    ],
)  # fmt: skip
def test_quantities_have_a_unit_of_their_size(value, unit, shown):
    assert benchmarks.quantity(value, unit) == shown
