"""Programs written for JAX, by a change of import: their results are JAX's.

``python tests/test_ports.py``, in an environment with JAX 0.10 and without gtrace, writes JAX's results anew.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy
import pytest

FOLDER = Path(__file__).parent / "ports"
STORED = Path(__file__).parent / "data" / "jax_ports.json"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))


def load(name):
    spec = importlib.util.spec_from_file_location(f"port_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flat(results, flatten, keystr):
    """The results by key path, as what JSON holds."""
    out = {}
    for path, leaf in flatten(results)[0]:
        value = numpy.asarray(leaf) if not isinstance(leaf, str) else leaf
        out[keystr(path)] = (
            value
            if isinstance(value, str)
            else {"dtype": str(value.dtype), "shape": list(value.shape), "values": [float(x) for x in value.ravel()]}
        )
    return out


@pytest.fixture
def jax():
    import gtrace as gt
    import gtrace.jax as ours

    with gt.config(x64=False, jax_results=True):
        ours.install()
        yield ours
        ours.uninstall()


WRAPPERS = {
    "undecorated": lambda jax: lambda f: f,
    "jitted": lambda jax: lambda f: jax.jit(f, backend="eager"),
    "compiled": lambda jax: jax.jit,
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["undecorated", "jitted", pytest.param("compiled", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_jax(name, how, jax):
    expected = json.loads(STORED.read_text(encoding="utf-8"))[name]
    results = load(name).main(WRAPPERS[how](jax))
    got = flat(results, jax.tree_util.tree_flatten_with_path, jax.tree_util.keystr)
    assert list(got) == list(expected)
    for key, theirs in expected.items():
        ours = got[key]
        if isinstance(theirs, str):
            assert ours == theirs, key
            continue
        assert (ours["dtype"], ours["shape"]) == (theirs["dtype"], theirs["shape"]), key
        numpy.testing.assert_allclose(ours["values"], theirs["values"], rtol=2e-4, atol=2e-5, err_msg=f"{name}{key}")


def test_there_are_results_for_each():
    assert len(PROGRAMS) >= 12 and set(json.loads(STORED.read_text(encoding="utf-8"))) == set(PROGRAMS)


def rounded(x):
    return {**x, "values": [float(f"{v:.7g}") for v in x["values"]]} if isinstance(x, dict) else x


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    tree_util = importlib.import_module("jax").tree_util
    assert "gtrace" not in sys.modules
    pages = []
    for program in PROGRAMS:
        found = flat(load(program).main(lambda f: f), tree_util.tree_flatten_with_path, tree_util.keystr)
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(rounded(x))}" for key, x in found.items())
        pages.append(f' "{program}": {{\n{lines}\n }}')
    STORED.write_text("{\n" + ",\n".join(pages) + "\n}\n", encoding="utf-8")
