"""The page of libraries and models says what was run; every quickstart has JAX's numbers and pinned packages."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "ecosystem"
SCRIPTS = {path.stem.removeprefix("try_"): path for path in sorted((FOLDER / "quickstarts").glob("try_*.py"))}


def data(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def test_the_page_is_what_the_results_say():
    page = runpy.run_path(str(FOLDER / "page.py"))
    assert page["PAGE"].read_text(encoding="utf-8") == page["text"](), "run python tests/ecosystem/page.py"


def test_every_library_has_a_quickstart_numbers_and_a_row():
    assert set(SCRIPTS) == set(data("libraries.json")) == set(data("expected.json"))
    assert set(data("results.json")["libraries"]) == set(SCRIPTS)


def test_packages_are_pinned():
    lines = (FOLDER / "requirements.txt").read_text(encoding="utf-8").splitlines()[1:]
    pinned = {re.split("==", line)[0].lower().replace("_", "-") for line in lines}
    assert all("==" in line for line in lines) and not pinned & {"jax", "jaxlib", "torch"}
    assert {package for library in data("libraries.json").values() for package in library["packages"]} <= pinned


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_quickstart_states_the_parts_that_have_numbers(name):
    calls = [x for x in ast.walk(ast.parse(SCRIPTS[name].read_text(encoding="utf-8"))) if isinstance(x, ast.Call)]
    first = [x.args[0] for x in calls if isinstance(x.func, ast.Name) and x.func.id == "show"]
    stated = {x.value for x in first if isinstance(x, ast.Constant)}
    known = data("expected.json")[name]
    assert stated <= set(known) and (len(stated) < len(first) or stated == set(known))
    assert all(known.values()), "a part has numbers"
