"""Writes jax_sparse.json: what the programs of tests/sparse_programs.py return with JAX.

Run it with Python that has JAX 0.10 and SciPy: ``python tests/data/make_jax_sparse.py``.
"""

from __future__ import annotations

import json
import pathlib
import sys

import jax
from jax.experimental import sparse

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from sparse_programs import PROGRAMS, numbers  # noqa: E402 - in the directory above

lines = [f"{json.dumps(p.__name__)}: {json.dumps([numbers(x) for x in p(jax, sparse)])}" for p in PROGRAMS]
(HERE / "jax_sparse.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
