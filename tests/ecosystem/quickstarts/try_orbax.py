"""orbax: a checkpoint of a pytree, written and read."""

import pathlib
import tempfile

import jax.numpy as jnp
import orbax.checkpoint as ocp
from parts import show

tree = {"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2))}}
with tempfile.TemporaryDirectory() as folder:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(pathlib.Path(folder) / "one", tree)
        checkpointer.wait_until_finished()
        found = checkpointer.restore(pathlib.Path(folder) / "one")
show("restored", found["a"], found["b"]["c"])
