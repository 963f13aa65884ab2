"""JAX's public names: which there are under ``gtrace.jax``, which differ, and which are missing.

``python tests/test_jax_names.py`` writes the table of docs/jax-names.md anew.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import gtrace as gt
from gtrace.errors import ArgumentError
from gtrace.jax.adapt import INSTEAD, JAX_NAMES, compare

PAGE = Path(__file__).parent.parent / "docs" / "jax-names.md"
START, END = "<!-- the table, by tests/test_jax_names.py -->\n", "<!-- the end of the table -->\n"

NOTES = {
    "jax.config": "settings that change no result here are accepted and ignored",
    "jax.default_backend": "as the setting `device` says, by default `\"cpu\"`",
    "jax.disable_jit": "what is under `vmap` is traced all the same",
    "jax.jit": "options that say where and how to compile are ignored; `backend=` may also name one of torch's",
    "jax.make_jaxpr": "fused operations of gtrace are one equation, or the equations that compute them",
    "jax.named_call": "without effect",
    "jax.named_scope": "without effect",
    "jax.pmap": "a jitted `vmap`, on one device",
    "jax.debug.callback": "in traced functions: if a result of theirs is computed",
    "jax.debug.print": "in traced functions: if a result of theirs is computed",
    "jax.lax.approx_max_k": "exact",
    "jax.set_mesh": "what `gt.sharding` lays out follows it; there are no explicit axes",
    "jax.shard_map": "over all axes of the mesh",
    "jax.scipy.linalg.sqrtm": "of matrices with a basis of eigenvectors",
    "jax.lax.optimization_barrier": "the identity",
    "jax.lax.Precision": "products are computed in the dtype of the operands whatever it says",
    "jax.numpy.abs": "the derivative at 0 is 0, not 1",
    "jax.numpy.absolute": "the derivative at 0 is 0, not 1",
    "jax.lax.abs": "the derivative at 0 is 0, not 1",
    "jax.numpy.promote_types": "follows the setting `x64`",
    "jax.scipy.optimize.minimize": "another line search than JAX's: the minimum is the same, the steps are not",
    "jax.tree_util.PyTreeDef": "without serialization",
}  # fmt: skip


def module(name):
    try:
        return importlib.import_module(f"gtrace.{name}")
    except ModuleNotFoundError:
        return None


def sorted_names(name):
    """Return the names that are there, those that differ with a note, and those that are missing."""
    found = module(name)
    there, differs, missing = [], {}, []
    for key, parameters in JAX_NAMES[name].items():
        if found is None or not hasattr(found, key):
            missing.append(key)
            continue
        notes = [NOTES[f"{name}.{key}"]] if f"{name}.{key}" in NOTES else []
        value = getattr(found, key)
        if parameters is not None and callable(value) and not isinstance(value, type):
            difference = compare(inspect.unwrap(value), parameters)
            refused = [] if difference is None else [p for p in difference.refused if p not in OUT_OF_USE]
            if refused:
                notes.append("without " + ", ".join(f"`{p}=`" for p in refused))
        if notes:
            differs[key] = "; ".join(notes)
        else:
            there.append(key)
    return there, differs, missing


OUT_OF_USE = ("out", "order", "copy", "ndmin", "promote_integers", "is_ref", "weak_type")
"""Parameters that JAX itself refuses, or that change nothing for arrays that never change."""


def listed(head, names):
    """The text of a list of names, in lines of 120 characters."""
    text = f"**{head} ({len(names)}):** " + ", ".join(f"`{name}`" for name in names)
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def table():
    """The text of the table."""
    lines = []
    total = sum(map(len, JAX_NAMES.values()))
    known = [sorted_names(name) for name in JAX_NAMES]
    there, differing = sum(len(a) for a, _, _ in known), sum(len(b) for _, b, _ in known)
    lines.append(f"Of {total} names {there} are there, {differing} differ, {total - there - differing} are missing.\n")
    for name, (there_, differs, missing) in zip(JAX_NAMES, known, strict=True):
        lines.append(f"### {name}\n")
        if there_:
            lines.append(listed("There", there_))
        if differs:
            lines.append(f"**Differs ({len(differs)}):**\n")
            lines += [f"- `{key}`: {note}" for key, note in differs.items()]
            lines.append("")
        if missing:
            lines.append(listed("Missing", missing))
    return "\n".join(lines)


def parts():
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    inside, after = rest.split(END)
    return before, inside, after


def test_the_table_is_that_of_the_page():
    assert parts()[1] == table()


def test_functions_are_not_hidden_by_modules_of_their_names():
    for name, keys in JAX_NAMES.items():
        for key, parameters in keys.items():
            found = getattr(module(name), key, None)
            assert parameters is None or not inspect.ismodule(found), f"{name}.{key}"


def test_notes_are_on_names_that_are_there():
    for name in NOTES:
        place, _, key = name.rpartition(".")
        assert key in JAX_NAMES[place] and hasattr(module(place), key), name


@pytest.mark.parametrize("name", [name for name in JAX_NAMES if module(name) is not None])
def test_names_can_be_listed_and_are_all_callable_with_their_own_parameters(name):
    found = module(name)
    for key in dir(found):
        assert getattr(found, key) is getattr(found, key), "it is found once, and kept"


def test_missing_names_say_what_is_near_and_where_to_look():
    import gtrace.jax as jax

    with pytest.raises(AttributeError, match=r"jax\.numpy has no name 'meshgird'.*jax\.numpy\.meshgrid.*jax-names"):
        _ = jax.numpy.meshgird
    with pytest.raises(AttributeError, match=r"jax\.lax\.rng_uniform is not part of gtrace\. Use jax\.random\.uniform"):
        _ = jax.lax.rng_uniform
    with pytest.raises(ImportError, match=r"meshgird.*meshgrid"):
        exec("from gtrace.jax.numpy import meshgird", {})
    assert not hasattr(jax.numpy, "meshgird")


def test_advice_is_on_names_that_are_missing():
    for name in INSTEAD:
        place, _, key = name.rpartition(".")
        assert key in JAX_NAMES[place] and not hasattr(module(place), key), name


def test_parameters_have_jaxs_names_and_order():
    import gtrace.jax.numpy as jnp

    x = gt.array([[1.0, 2.0], [3.0, 5.0]])
    assert jnp.sum(a=x, axis=0, keepdims=True).tolist() == [[4.0, 7.0]]
    assert jnp.std(x, 0, None, None, 1).tolist() == gt.std(x, 0, ddof=1).tolist()
    assert jnp.linspace(0.0, 1.0, 3, True, True)[1].item() == 0.5
    assert jnp.dot(x, b=x, precision="highest").shape == (2, 2)
    assert jnp.histogram(x, 2, (1.0, 5.0), jnp.ones(4).reshape(2, 2))[0].tolist() == [2.0, 2.0]
    assert jnp.dot(x, x, preferred_element_type=jnp.float16).dtype == "float16"
    with pytest.raises(ArgumentError, match=r"subset_by_index left to its default"):
        jnp.linalg.svd(x, subset_by_index=(0, 1))
    with pytest.raises(TypeError, match="unexpected keyword argument 'axes'"):
        jnp.sum(x, axes=0)
    with pytest.raises(TypeError, match="8 positional arguments but 9"):
        jnp.sum(x, None, None, None, None, None, None, None, None)


if __name__ == "__main__":
    first, _, last = parts()
    PAGE.write_text(first + START + table() + END + last, encoding="utf-8")
    print(re.search(r"Of .*", table())[0])
