"""orbax: checkpoints of pytrees, written and read; steps of a manager; a template; a checkpoint that JAX wrote."""

import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from parts import show

tree = {"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2))}}
with tempfile.TemporaryDirectory() as folder:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(pathlib.Path(folder) / "one", tree)
        checkpointer.wait_until_finished()
        found = checkpointer.restore(pathlib.Path(folder) / "one")
show("restored", found["a"], found["b"]["c"])

state = {
    "params": [jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), jnp.array([1, -2, 3], jnp.int8)],
    "step": jnp.array(7), "rate": 0.5, "count": 3, "host": np.arange(4.0),
}  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    with ocp.StandardCheckpointer() as checkpointer:
        path = pathlib.Path(folder) / "state"
        checkpointer.save(path, state)
        checkpointer.wait_until_finished()
        template = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        found = checkpointer.restore(path, template)
        wide = dict(template, step=jax.ShapeDtypeStruct((), jnp.float32))
        other = checkpointer.restore(path, wide)
        described = checkpointer.metadata(path).item_metadata
show("template", *found["params"], found["step"], found["rate"], found["count"], found["host"], other["step"])
show(
    "metadata",
    *described["params"][0].shape,
    other["step"].dtype == jnp.float32,
    found["params"][0].dtype == "bfloat16",
)

with tempfile.TemporaryDirectory() as folder:
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=1)
    with ocp.CheckpointManager(folder, options=options) as manager:
        for step in range(3):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(2, step + 0.5)}), metrics=None)
        manager.wait_until_finished()
        latest = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore({"w": jnp.zeros(2)}))
        show("manager", manager.all_steps(), manager.latest_step(), latest["w"])
    with ocp.CheckpointManager(folder) as manager:
        show("manager again", manager.restore(1, args=ocp.args.StandardRestore())["w"])

with tempfile.TemporaryDirectory() as folder:
    with ocp.CheckpointManager(folder) as manager:
        items = {"state": ocp.args.StandardSave(tree), "extra": ocp.args.JsonSave({"epoch": 4})}
        manager.save(0, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
        wanted = {"state": ocp.args.StandardRestore(tree), "extra": ocp.args.JsonRestore()}
        found = manager.restore(0, args=ocp.args.Composite(**wanted))
show("composite", found["state"]["a"], found["extra"]["epoch"])

with tempfile.TemporaryDirectory() as folder:
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(pathlib.Path(folder) / "one", state)
        found = checkpointer.restore(pathlib.Path(folder) / "one")
show("pytree", *found["params"], found["rate"])

with ocp.StandardCheckpointer() as checkpointer:
    found = checkpointer.restore(pathlib.Path(__file__).with_name("orbax_of_jax").absolute())
show("of jax", found["w"], found["n"]["half"], found["n"]["k"], found["big"])
