"""What orbax, flax and levanter need to write and read arrays: devices, layouts, stores, functions beside arrays."""

import asyncio
import sys

import numpy as np
import pytest

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.errors import ArgumentError, ShapeError
from gtrace.jax.experimental import colocated_python, layout, mesh_utils, multihost_utils
from gtrace.jax.experimental.array_serialization import serialization


@pytest.fixture(autouse=True)
def jax_settings():
    with gt.config(x64=False, jax_results=True):
        yield


def on_one_device():
    return jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])


def on_a_mesh():
    return jax.NamedSharding(jax.make_mesh((1,), ("x",)), jax.P("x"))


def test_the_device_of_an_array_has_jaxs_properties():
    x = jnp.ones(2)
    assert x.device.platform == x.device.type == "cpu" and x.device.index is None and str(x.device) == "cpu:0"
    assert [memory.kind for memory in x.device.addressable_memories()] == ["device"]
    assert x.device.default_memory().device == x.device and x.device.client.runtime_type == "gtrace"
    assert x.device == gt.ones(1).device and x.is_cpu and not x.is_cuda and x.get_device() == -1
    assert gt.zeros(2, device=x.device).tolist() == [0.0, 0.0] and gt.nn.relu(x).device == x.device
    assert x.to(x.device).device == x.device and jax.device_put(np.ones(2), x.device).device == x.device
    assert jax.jit(lambda y: jnp.zeros(y.shape, device=y.device) + y)(x).tolist() == [1.0, 1.0]
    with gt.config(jax_results=False):
        assert type(x.device).__module__ == "torch" and x.device == jax.devices("cpu")[0]
    with jax.default_device(on_one_device()):
        assert jnp.ones(1).device.platform == "cpu"


def test_arrays_are_put_where_a_format_says():
    for kind in (on_one_device(), on_a_mesh()):
        assert jax.device_put(jnp.ones(2), layout.Format(None, kind)).sharding == kind


@pytest.mark.parametrize("kind", [on_one_device, on_a_mesh])
def test_layouts_say_which_device_has_which_part(kind):
    own = kind()
    ((device, place),) = own.devices_indices_map((2, 3)).items()
    assert own._addressable_device_assignment == own._device_assignment == (device,) == (jax.devices("cpu")[0],)
    assert np.arange(6).reshape(2, 3)[place].shape == (2, 3)
    assert own.addressable_devices_indices_map((2, 3)) == {device: place} and own.is_equivalent_to(own, 2)


def test_functions_run_beside_their_arrays():
    double = colocated_python.colocated_python(lambda x, by=2: {"y": x * by})
    assert double(jnp.ones(2), by=3)["y"].tolist() == [3.0, 3.0]
    assert double.specialize(out_specs_fn=lambda x: {"y": x})(jnp.ones(2))["y"].tolist() == [2.0, 2.0]
    with pytest.raises(ArgumentError, match="out_specs_fn"):
        double.specialize(out_specs_fn=lambda x: {"y": jax.ShapeDtypeStruct((3,), x.dtype)})(jnp.ones(2))
    with pytest.raises(ArgumentError, match="io_callback"):
        jax.jit(lambda x: double(x)["y"])(jnp.ones(2))
    devices = jax.devices("cpu")
    assert colocated_python.colocated_cpu_devices(devices) == devices
    mesh = jax.make_mesh((1,), ("x",))
    assert colocated_python.colocated_cpu_devices(mesh) == mesh
    made = []

    class Counter:
        def __init__(self, start):
            made.append(start)
            self.count = start

        def next(self, x):
            self.count += 1
            return x + self.count

    counter = colocated_python.colocated_python_class(Counter)(4)
    assert not made and counter.next(jnp.ones(1)).tolist() == [6.0] and counter.next(jnp.ones(1)).tolist() == [7.0]
    assert made == [4] and not hasattr(counter, "other")


def test_grids_of_groups_of_devices_and_parts_of_processes():
    devices = list(range(8))
    grid = mesh_utils.create_hybrid_device_mesh((2, 2), (2, 1), devices)
    assert grid.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(ShapeError, match="as many axes"):
        mesh_utils.create_hybrid_device_mesh((2, 2), (2,), devices)
    mesh, x = jax.make_mesh((1,), ("x",)), {"a": jnp.arange(4.0), "b": jnp.ones((2, 2))}
    for specs in (jax.P("x"), {"a": jax.P("x"), "b": jax.P()}):
        whole = multihost_utils.host_local_array_to_global_array(x, mesh, specs)
        assert whole["a"].sharding.mesh == mesh
        own = multihost_utils.global_array_to_host_local_array(whole, mesh, specs)
        assert own["a"].tolist() == [0.0, 1.0, 2.0, 3.0] and own["b"].shape == (2, 2)


def test_places_of_stores():
    spec = serialization.get_tensorstore_spec
    assert spec("gs://bucket/a/b/")["kvstore"] == {"driver": "gcs", "bucket": "bucket", "path": "a/b"}
    assert spec("s3://bucket/a")["kvstore"] == {"driver": "s3", "bucket": "bucket", "path": "a"}
    base = {"driver": "file", "path": "/a"}
    assert spec("/a/b", ocdbt=True)["kvstore"] == {"driver": "ocdbt", "base": base, "path": "b"}
    with pytest.raises(ArgumentError, match="absolute"):
        spec("a/b", ocdbt=True)


def test_without_tensorstore_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(ArgumentError, match="Install tensorstore"):
        serialization.run_serialization([jnp.ones(2)], [serialization.get_tensorstore_spec("/nowhere")])


def test_a_manager_writes_and_reads_arrays(tmp_path):
    pytest.importorskip("tensorstore")
    values = [jnp.arange(6.0).reshape(2, 3), jnp.array(3), jnp.zeros((0, 2))]
    paths, done = [str(tmp_path / name) for name in "abc"], []
    manager = serialization.GlobalAsyncCheckpointManager()
    manager.serialize_with_paths(values, paths, on_commit_callback=lambda: done.append(True))
    manager.wait_until_finished()
    found = manager.deserialize_with_paths([on_a_mesh(), on_one_device(), on_one_device()], paths)
    assert done == [True] and [x.tolist() for x in found] == [x.tolist() for x in values]
    assert found[0].sharding.is_equivalent_to(on_a_mesh(), 2)
    (cut,) = serialization.run_deserialization(
        [on_one_device()], [serialization.get_tensorstore_spec(paths[0])], [(3, 2)], [jnp.int32]
    )
    assert cut.tolist() == [[0, 1], [3, 4], [0, 0]] and cut.dtype == jnp.int32
    inner = serialization.get_tensorstore_spec(str(tmp_path / "o" / "a"), ocdbt=True, driver="zarr3")
    asyncio.run(serialization.async_serialize(values[0], inner))
    like = jax.ShapeDtypeStruct((2, 3), jnp.float16, sharding=on_one_device())
    assert asyncio.run(serialization.async_deserialize(like, inner)).dtype == jnp.float16
    with pytest.raises(ZeroDivisionError):
        manager.serialize_with_paths(values[:1], paths[:1], on_commit_callback=lambda: 1 / 0)
    manager.wait_until_finished()
