"""Writes jax_keys.json: what the programs of tests/key_programs.py return with JAX.

Run it with Python that has JAX 0.10: ``python tests/data/make_jax_keys.py``.
"""

from __future__ import annotations

import json
import pathlib
import sys

import jax

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from key_programs import described, programs  # noqa: E402 - in the directory above

lines = [
    f"{json.dumps(name)}: {json.dumps(described(jax, program()))}" for name, program in programs(jax, jax.jit).items()
]
(HERE / "jax_keys.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
