"""Arrays as users see them: lazy, immutable, forced by a look, at home with NumPy and torch."""

from __future__ import annotations

import copy
import math
import pickle
import re

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import gtrace as gt
from gtrace.core.base.events import Forced, Ran, bus


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        gt.eval(gt.zeros(1) + 1)
        yield


@pytest.fixture
def seen():
    """The forces and runs of a test, in order."""
    events = []
    stop = bus.subscribe(events.append, Forced, Ran)
    yield events
    stop()


def causes(events) -> list[str]:
    return [e.cause for e in events if isinstance(e, Forced)]


# laziness


def test_nothing_runs_until_a_value_is_looked_at(seen):
    x = gt.ones(3)
    y = (x * 2 + 1).sum()
    assert not seen
    assert float(y) == 9.0
    assert causes(seen) == ["float"]
    assert sum(isinstance(e, Ran) for e in seen) == 1


LOOKS = [
    ("float", float), ("int", int), ("bool", bool), ("item", lambda x: x.item()), ("tolist", lambda x: x.tolist()),
    ("numpy", np.asarray), ("print", repr), ("print", str), ("eval", gt.eval), ("to_torch", lambda x: x.to_torch()),
    ("format", lambda x: f"{x:.2f}"), ("pickle", pickle.dumps), ("dlpack", torch.from_dlpack),
    ("block_until_ready", lambda x: x.block_until_ready()),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "look"), LOOKS)
def test_every_look_is_logged_with_its_cause_and_line(seen, cause, look):
    look(gt.ones(()) + 1)
    (force,) = [e for e in seen if isinstance(e, Forced)]
    assert force.cause == cause
    assert re.search(r"test_arrays\.py:\d+$", force.location)


def test_a_force_computes_all_that_is_held_and_nothing_else(seen):
    x = gt.ones(3)
    kept, total = x * 3, None
    total = (x * 5 * 7).sum()
    float(total)
    np.testing.assert_array_equal(np.asarray(kept), [3, 3, 3])
    assert sum(isinstance(e, Ran) for e in seen) == 1, "what was held had been computed with the total"


def test_dead_results_are_not_outputs():
    def program():
        a = gt.ones(4) * 2
        b = a + 1
        return (b * b).sum()

    before = {p.signature for p in gt.stats()}
    float(program())
    (new,) = [p for p in gt.stats() if p.signature not in before]
    assert new.ops.count("sum") == 1
    from gtrace.core.runtime.engine import engine

    (entry,) = [e for e in engine.programs.values() if e.signature.exact == new.signature]
    assert len(entry.graph.outputs) == 1


def test_the_budget_bounds_what_is_pending(seen):
    with gt.config(max_pending=50):
        x = gt.ones(2)
        for _ in range(200):
            x = x + 1
        assert float(x[0]) == 201.0
    # until enough of it has repeated; then the chain is cut at its period
    found = causes(seen)
    assert found.count("budget") == 2 and found.count("period") >= 5


def test_a_chain_of_100_000_operations():
    x = gt.zeros(())
    for _ in range(100_000):
        x = x + 1.0
    assert float(x) == 100_000.0


def test_a_failing_program_loses_nothing_else():
    x = gt.arange(5)
    fine = x * 10
    broken = gt.take(x, gt.array([7]), mode="raise")
    after = broken + 1
    with pytest.raises(gt.ExecutionError, match=r"\[index\]"):
        gt.eval(fine, broken)
    np.testing.assert_array_equal(np.asarray(fine), [0, 10, 20, 30, 40])
    for x in (broken, after):
        with pytest.raises(gt.ExecutionError, match="out of"):
            gt.eval(x)
    assert float(gt.ones(()) + 1) == 2.0


def test_eager_mode_runs_each_operation_and_fails_at_its_line(seen):
    with gt.config(eager=True):
        x = gt.ones(2) + 1
        assert causes(seen).count("eager") == 2
        with pytest.raises(gt.ExecutionError, match="out of"):
            gt.take(x, gt.array([7]), mode="raise")


# immutability


def test_writing_is_refused_with_the_way_out():
    x = gt.zeros(3)
    with pytest.raises(gt.ImmutableError, match=r"Instead of x\[idx\] = y use x = x\.at\[idx\]\.set\(y\)"):
        x[0] = 1.0
    with pytest.raises(gt.ImmutableError, match="immutable"):
        del x[0]
    with pytest.raises(gt.ImmutableError, match=r"gt\.value_and_grad"):
        x.backward()
    with pytest.raises(TypeError, match=r"gt\.array"):
        gt.Array()
    with pytest.raises(TypeError, match="subclass"):
        type("Mine", (gt.Array,), {})
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    y = x
    y += 1
    assert float(x.sum()) == 0.0 and float(y.sum()) == 3.0


@pytest.mark.parametrize("make", [gt.array, lambda v: gt.zeros(3) + v])
@pytest.mark.parametrize("buffer", [np.ones(3, np.float32), torch.ones(3)], ids=["numpy", "torch"])
def test_changing_a_buffer_handed_in_changes_no_pending_result(make, buffer):
    pending = make(buffer) * 2
    buffer[:] = 5
    np.testing.assert_array_equal(np.asarray(pending), [2, 2, 2])
    buffer[:] = 1


def test_asarray_and_its_kin_share_memory():
    host = np.ones(3, np.float32)
    for make in (gt.asarray, gt.from_numpy, lambda h: gt.from_torch(torch.from_numpy(h)), gt.from_dlpack):
        assert np.shares_memory(np.asarray(make(host)), host)
    assert not np.shares_memory(np.asarray(gt.array(host)), host)


def packed_field(rows):
    records = np.zeros(rows, dtype=np.dtype([("flag", "i1"), ("x", "f8"), ("v", "f4", (3,))]))
    records["x"] = np.arange(rows)
    return records["x"]


@pytest.mark.parametrize("make", [gt.asarray, gt.array, gt.from_numpy, gt.from_dlpack, gt.negative])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_memory_that_torch_cannot_address_is_copied(make, rows):
    field = packed_field(rows)
    np.testing.assert_array_equal(abs(make(field)), field)
    unaligned = np.frombuffer(bytearray(8 * rows + 1), dtype="f8", offset=1)
    np.testing.assert_array_equal(make(unaligned), unaligned)


def fake():
    with FakeTensorMode():
        return torch.ones(2)


def freed():
    tensor = torch.ones(2)
    tensor.untyped_storage().resize_(0)
    return tensor


class Wrapper(torch.Tensor):
    """A subclass that keeps its values in another tensor, as those of torch.distributed do."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2,))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("no operation of it is to run")


MAKERS = [gt.asarray, gt.array, gt.from_torch, gt.from_dlpack, gt.sin, lambda t: gt.array([t, t])]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("tensor", [fake, freed, Wrapper])
def test_tensors_without_values_are_refused(make, tensor):
    with pytest.raises(gt.ArgumentError, match=r"expected a tensor with values.*test_arrays"):
        make(tensor())


@pytest.mark.parametrize("make", MAKERS)
def test_tensors_inside_a_transform_of_torch_are_refused(make):
    for transform in (torch.func.vmap, torch.func.grad):
        with pytest.raises(gt.ArgumentError, match="outside of torch's own transforms"):
            transform(make)(torch.ones(2))


def test_subclasses_with_values_become_plain():
    class Named(torch.Tensor):
        pass

    for tensor in (torch.nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Named)):
        for make in (gt.asarray, gt.array, gt.from_torch, gt.from_dlpack, gt.absolute):
            assert type(make(tensor).to_torch()) is torch.Tensor


class Lender:
    """An object of another library, which lends the memory of a NumPy array."""

    def __init__(self, host, protocol):
        setattr(type(self), protocol, lambda self, *args, **kwargs: getattr(host, protocol)(*args, **kwargs))


@pytest.mark.parametrize("protocol", ["__dlpack__", "__array__"])
def test_array_copies_what_other_libraries_lend(protocol):
    host = np.ones(2)
    lender = type("Lender", (Lender,), {"__dlpack_device__": lambda self: (1, 0)})(host, protocol)
    copied, shared = gt.array(lender), gt.asarray(lender)
    host[0] = 5
    assert copied.tolist() == [1, 1] and shared.tolist() == [5, 1]


def test_dlpack_that_fails_says_what_came():
    class Locked:
        def __dlpack__(self, **kwargs):
            raise BufferError("the memory is in use")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(gt.ArgumentError, match=r"\[from_dlpack\].*Locked: the memory is in use"):
        gt.asarray(Locked())


def test_views_handed_out_cannot_be_written_to():
    x = gt.ones(3) + 0
    view = np.asarray(x)
    assert np.shares_memory(view, x.numpy())
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    x.to_torch()[0] = 5
    np.array(x)[0] = 5
    assert float(x.sum()) == 3.0


# text and protocols


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (lambda: gt.array([1.0, 2.0]), "Array([1., 2.], dtype=float32)"),
        (lambda: gt.array(3), "Array(3, dtype=int64)"),
        (lambda: gt.array([[True], [False]]), "Array([[ True],\n       [False]], dtype=bool)"),
        (lambda: gt.zeros((0,)), "Array([], dtype=float32)"),
        (lambda: gt.ones(2, dtype=gt.bfloat16), "Array([1., 1.], dtype=bfloat16)"),
    ],
)
def test_repr(array, text):
    assert repr(array()) == text


def test_text_of_placeholders_and_formats():
    texts = []
    gt.make_graph(lambda x, s: texts.extend([repr(x), str(x), repr(s)]) or x)(gt.ones((2, 3)), gt.ones(()))
    assert texts == ["Traced(float32[2, 3])", "Traced(float32[2, 3])", "Traced(float32[])"]
    assert f"{gt.array(2.5):.2f} {gt.array([1, 2])}" == "2.50 [1 2]"


def test_printing_records_nothing():
    def signatures(look):
        before = {p.signature: p.calls for p in gt.stats()}
        x = gt.ones(3) * 1.5
        look(x)
        float((x * x).sum())
        return {p.signature for p in gt.stats() if p.calls != before.get(p.signature)}

    assert signatures(gt.eval) == signatures(repr) == signatures(str)


def test_numpy_protocol():
    x = gt.array([1.5, 2.5])
    assert np.asarray(x).dtype == np.float32
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert x.__array__(copy=True).flags.writeable
    with pytest.raises(ValueError, match="no copy"):
        x.__array__(np.dtype(np.float64), copy=False)
    both = [np.array([1.0, 2.0], np.float32) * x, x * np.array([1.0, 2.0], np.float32)]
    for out in both:
        assert type(out) is gt.Array and out.dtype == gt.float32
        np.testing.assert_array_equal(np.asarray(out), [1.5, 5.0])
    with pytest.raises(gt.DtypeError, match=r"astype\(gt\.float32\)"):
        np.asarray(x.astype(gt.bfloat16))


def test_numpy_functions_and_scalars():
    x = gt.array([1.0, 4.0])
    np.testing.assert_array_equal(np.sqrt(x), [1, 2])
    assert type(np.sqrt(x)) is np.ndarray
    for out in (np.float32(2) * x, x * np.float32(2), np.float64(2) * x, np.array(2.0, np.float32) * x):
        assert type(out) is gt.Array and out.dtype == gt.float32 and out.tolist() == [2.0, 8.0]
    assert (x == None) is False and (x != "text") is True and None not in [x, x]  # noqa: E711
    with pytest.raises(gt.ConcretizationError, match="numpy"):
        gt.make_graph(lambda v: np.sqrt(v))(x)


def test_other_protocols():
    x = gt.array([[1.0, 2.0], [3.0, 4.0]])
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x), gt.from_dlpack(torch.from_dlpack(x))):
        assert type(twin) is gt.Array and twin.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(twin), np.asarray(x))
    b = pickle.loads(pickle.dumps(x.astype(gt.bfloat16)))
    assert b.dtype == gt.bfloat16 and float(b.sum()) == 10.0
    assert [r.tolist() for r in x] == [[1.0, 2.0], [3.0, 4.0]] and len(x) == 2
    assert x.__dlpack_device__() == torch.ones(1).__dlpack_device__()
    xp = x.__array_namespace__()
    assert float(xp.sum(xp.asarray([1.0, 2.0]))) == 3.0
    with pytest.raises(gt.ArgumentError, match=r"2024\.12"):
        x.__array_namespace__(api_version="1999.01")
    assert (x.shape, x.ndim, x.size, x.nbytes, x.itemsize) == ((2, 2), 2, 4, 16, 4)
    assert x.device == torch.device("cpu") and x.T[0, 1].item() == 3.0 and x.mT.shape == (2, 2)
    assert list(range(5))[gt.array(2)] == 2


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: float(gt.ones(2)), ValueError, "one element"),
        (lambda: bool(gt.ones(2)), ValueError, "one element"),
        (lambda: [1, 2][gt.array(1.0)], TypeError, "integer"),
        (lambda: len(gt.array(1.0)), TypeError, "0-d"),
        (lambda: iter(gt.array(1.0)), TypeError, "0-d"),
        (lambda: gt.array([[1], [2, 3]]), gt.ShapeError, "ragged"),
        (lambda: gt.array(["a"]), gt.DtypeError, "numbers"),
        (lambda: float(gt.array(1j)), TypeError, "complex"),
        (lambda: [1, 2][gt.array(1j)], TypeError, "integer"),
        (lambda: gt.array(np.ones(2, np.complex64), dtype=float), gt.DtypeError, "complex64"),
        (lambda: gt.array(np.ones(2, np.clongdouble)), gt.DtypeError, "complex256"),
        (lambda: gt.ones(2, dtype="float99"), gt.DtypeError, "float99"),
        (lambda: gt.array([1.0, float("nan")], dtype=gt.int32), gt.DtypeError, "nan"),
        (lambda: gt.asarray(np.array([np.inf]), dtype=gt.int64), gt.DtypeError, "inf"),
        (lambda: gt.full(2, float("nan"), dtype=gt.int64), gt.DtypeError, "nan"),
        (lambda: gt.array([300], dtype=gt.uint8), gt.DtypeError, "300"),
        (lambda: gt.array([1], dtype=gt.int8) + 300, gt.DtypeError, "300"),
        (lambda: gt.array(2**70), gt.DtypeError, "64 bits"),
        (lambda: gt.add(gt.ones(2), [1, 2]), gt.ArgumentError, r"gt\.array"),
        (lambda: gt.ones(2) + "a", gt.ArgumentError, "str"),
        (lambda: gt.ones(2, device="tpu"), gt.DeviceError, "tpu"),
        (lambda: gt.ones((2, 3)) @ gt.ones((4, 5)), gt.ShapeError, "last size"),
        (lambda: gt.ones((2, 3)) + gt.ones((2, 4)), gt.ShapeError, "broadcast"),
        (lambda: gt.ones(3).sum(axis=1), gt.ShapeError, "axis"),
        (lambda: gt.ones(3)[5], gt.BoundsError, "out of range"),
        (lambda: gt.ones(3)[5], IndexError, "out of range"),
        (lambda: gt.ones(3)[gt.array([True, False])], gt.ShapeError, "mask"),
        (lambda: gt.arange(3).at[0].set(1.5), gt.DtypeError, "1.5"),
        (lambda: gt.ones(3).at[0].set(1j), gt.DtypeError, "1j"),
        (lambda: gt.ones(3).at[0].set(gt.array(1j)), gt.DtypeError, "update"),
    ],
)
def test_bad_input_is_refused_when_it_is_given(call, error, match):
    with pytest.raises(error, match=match) as info:
        call()
    if isinstance(info.value, gt.GtraceError) and not isinstance(info.value, gt.DtypeError):
        assert "expected" in str(info.value) and "got" in str(info.value)


def test_a_call_met_before_does_not_let_other_types_pass():
    x = gt.ones((2, 3))
    assert x.sum(axis=(1,)).shape == (2,)
    for axis in (1.0, (1.0,)):
        with pytest.raises(gt.ArgumentError, match="integer"):
            x.sum(axis=axis)
    assert math.copysign(1, gt.linspace(0.0, 1.0, 3)[0].item()) == math.copysign(1, gt.linspace(-0.0, 1, 3)[0].item())


@pytest.mark.parametrize("folder", ["torch", "optree", "contextlib.py"])
def test_folders_of_the_users_may_have_the_names_of_packages(folder):
    name = f"/home/me/{folder}/train.py"
    code = compile("import gtrace as gt\ngt.ones(2) + gt.ones(3)\n", name, "exec")
    with pytest.raises(gt.ShapeError, match=re.escape(f"(at {name}:2)")):
        exec(code, {})


def test_shape_and_dtype_errors_name_the_users_line():
    with pytest.raises(gt.ShapeError, match=r"test_arrays\.py:\d+\)"):
        gt.ones((2, 3)) @ gt.ones((4, 5))
    with pytest.raises(gt.DtypeError, match=r"test_arrays\.py:\d+\)") as info:
        gt.ones(3) & gt.ones(3)
    assert info.value.__context__ is None, "no inner error stands above the message"


def test_operands_of_two_devices_are_refused():
    from gtrace.core.ir.aval import aval
    from gtrace.core.ir.op import REGISTRY

    cpu, gpu = aval((3,), torch.float32), aval((3,), torch.float32, torch.device("cuda", 0))
    with pytest.raises(gt.DeviceError, match="one device"):
        REGISTRY["add"].instr((), (cpu, gpu))


# dtypes


@pytest.mark.parametrize(
    "dtype", [gt.bool, gt.uint8, gt.int8, gt.int32, gt.int64, gt.bfloat16, gt.float32, gt.float64], ids=str
)
def test_promotion_of_arrays_is_torchs_whatever_the_shapes(dtype):
    for other in (gt.uint8, gt.int64, gt.float16, gt.float64):
        for shape in ((2,), ()):
            assert (gt.ones(2, dtype=dtype) * gt.ones(shape, dtype=other)).dtype == torch.promote_types(
                dtype.torch, other.torch
            )


@pytest.mark.parametrize(
    ("dtype", "scalar", "expected"),
    [
        (gt.bfloat16, 2.0, gt.bfloat16), (gt.float32, 2, gt.float32), (gt.int8, 2, gt.int8),
        (gt.int32, 2.0, gt.float32), (gt.bool, 2, gt.int64), (gt.bool, 2.0, gt.float32), (gt.int32, True, gt.int32),
        (gt.float32, np.float64(2), gt.float32),
        (gt.int8, np.int64(2), gt.int8),
    ],
)  # fmt: skip
def test_python_and_numpy_scalars_are_weak(dtype, scalar, expected):
    x = gt.ones(2, dtype=dtype)
    for out in (x * scalar, scalar * x, gt.where(x > 0, x, scalar)):
        assert out.dtype == expected
    # a scalar argument of a traced function stays weak
    assert gt.jit(lambda v, s: v * s, backend="eager")(x, scalar).dtype == expected


def test_default_dtypes():
    assert [gt.array(v).dtype for v in (1, 1.0, True, [1, 2.0], [])] == [
        gt.int64,
        gt.float32,
        gt.bool,
        gt.float32,
        gt.float32,
    ]
    assert gt.array(np.ones(1)).dtype == gt.float64 and gt.array(torch.ones(1, dtype=torch.float16)).dtype == gt.float16
    assert (gt.arange(3) / 2).dtype == gt.float32 and gt.exp(gt.arange(3)).dtype == gt.float32
    assert gt.array([gt.ones(2), gt.zeros(2)]).shape == (2, 2)
