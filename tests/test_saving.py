"""``gt.save_arrays``, ``gt.save_checkpoint`` and their inverses: not a bit is lost, and no old checkpoint."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pickle
import random
import subprocess
import sys
import time

import attrs
import damage
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace import testing
from gtrace.core.base import json_fields
from gtrace.saving import files
from gtrace.sharding import Mesh, NamedSharding, P


@gt.tree.register
@attrs.frozen
class Layer:
    w: object
    b: object
    name: str = attrs.field(default="dense", metadata={"static": True})


TREE = {
    "layers": [Layer(gt.ones((2, 3)), gt.zeros(3)), Layer(gt.ones((3, 1), dtype=gt.bfloat16), None)],
    "counts": (gt.array([1, 2]), gt.array(True)),
    "key": gt.random.key(7),
    "unsigned": gt.array(np.array([2**64 - 1], np.uint64)),
    "complex": gt.array([1 + 2j]),
    "eight": gt.array([1.0, -2.5]).astype("float8_e4m3fn"),
    "empty": gt.zeros((0, 3)),
    "weak": gt.sin(1.5),
}


def assert_same(a, b):
    assert gt.tree.structure(a) == gt.tree.structure(b)
    for name, x, y in zip(gt.tree.paths(a), gt.tree.leaves(a), gt.tree.leaves(b), strict=True):
        if not isinstance(x, gt.Array):
            assert type(x) is type(y) and (x == y or x != x), name
            continue
        assert x.aval is y.aval, (name, x.aval, y.aval)
        bits = (gt.eval(v).to_torch().contiguous().reshape(-1).view(torch.uint8) for v in (x, y))
        assert torch.equal(*bits), name


# -- arrays


def test_arrays_come_back_by_name_and_as_a_tree(tmp_path):
    path = tmp_path / "tree.safetensors"
    gt.save_arrays(path, TREE, metadata={"made": "here"})
    flat = gt.load_arrays(path)
    assert {"layers.0.w", "layers.1.w", "counts.0", "key"} < set(flat)
    assert flat["layers.1.w"].dtype == "bfloat16"
    tree = gt.load_arrays(path, like=TREE)
    assert isinstance(tree["layers"][0], Layer) and tree["layers"][1].b is None
    assert_same({k: v for k, v in tree.items() if k != "weak"}, {k: v for k, v in TREE.items() if k != "weak"})
    assert gt.load_metadata(path) == {"made": "here"}
    specs = gt.tree_map(lambda x: gt.ShapeDtypeStruct(x.shape, x.dtype), TREE)
    assert_same(gt.load_arrays(path, like=specs)["layers"], tree["layers"])


def test_files_are_those_of_other_libraries(tmp_path):
    """A module's state_dict goes out by torch's own reader, and in from torch's own writer."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    params, apply = gt.from_module(module)
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    gt.save_arrays(ours, params | apply.state)
    read = safetensors.torch.load_file(ours)
    assert read.keys() == module.state_dict().keys()
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(read)
    expected = module.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in other.state_dict().items())
    safetensors.torch.save_file(module.state_dict(), theirs)
    assert_same(gt.load_arrays(theirs, like=params | apply.state), params | apply.state)
    module.load_state_dict({name: x.to_torch() for name, x in (params | apply.state).items()})


def test_views_of_one_array_and_layouts_are_saved_as_values(tmp_path):
    x = gt.eval(gt.arange(12).reshape(3, 4))
    tree = gt.eval({"x": x, "again": x, "turned": x.T, "row": x[1], "broadcast": gt.broadcast_to(gt.ones(1), (5,))})
    gt.save_arrays(tmp_path / "a", tree)
    for name, y in gt.load_arrays(tmp_path / "a").items():
        np.testing.assert_array_equal(y.numpy(), tree[name].numpy())


def test_a_file_is_mapped_and_may_be_replaced(tmp_path):
    path = tmp_path / "a.safetensors"
    gt.save_arrays(path, {"x": gt.full((1000,), 1.0)})
    first = gt.load_arrays(path)["x"]
    place = first.to_torch(copy=False).data_ptr()
    with open("/proc/self/maps") as maps:
        spans = [line.split() for line in maps if str(path) in line]
    assert any(int(a, 16) <= place < int(b, 16) for a, b in (span[0].split("-") for span in spans))
    gt.save_arrays(path, {"x": gt.full((1000,), 2.0)})
    assert float(first.sum()) == 1000 and float(gt.load_arrays(path)["x"].sum()) == 2000
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    gt.save_arrays(path, {"x": gt.ones(3)})

    def fail(tensors, file, metadata):
        with open(file, "wb") as out:
            out.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        gt.save_arrays(path, {"x": gt.zeros(3)})
    assert os.listdir(tmp_path) == ["a.safetensors"] and float(gt.load_arrays(path)["x"].sum()) == 3


def test_numbers_of_32_bits_when_they_are_asked_for(tmp_path):
    gt.save_arrays(tmp_path / "a", {"x": gt.array([1, 2]), "y": gt.ones(2, dtype=gt.float64)})
    with gt.config(x64=False):
        assert [x.dtype for x in gt.load_arrays(tmp_path / "a").values()] == ["int32", "float32"]


MISTAKES = [
    (lambda p: gt.save_arrays(p / "b", {"a": {"b": 1.0}, "a.b": 2.0}), gt.ArgumentError, "two named 'a.b'"),
    (lambda p: gt.save_arrays(p / "b", {"a": "text"}), gt.ArgumentError, "str at 'a'"),
    (lambda p: gt.save_arrays(p / "b", {"a": gt.ones(1)}, {"n": 1}), gt.ArgumentError, "metadata of texts"),
    (lambda p: gt.save_arrays(p / "b", {"z": gt.ones(1, dtype=gt.complex128)}), gt.DtypeError, "x.real and x.imag"),
    (lambda p: gt.load_arrays(p / "a", like={"x": gt.ones(3), "z": 1.0}), gt.StructureError, "no 'z' and also 'y'"),
    (lambda p: gt.load_arrays(p / "a", like={"x": gt.ones(4), "y": gt.ones(1)}), gt.ShapeError, r"\(4,\) for 'x'"),
    (lambda p: gt.load_arrays(p / "a", like={"x": gt.arange(3), "y": gt.ones(1)}), gt.DtypeError, "int64 for 'x'"),
    (lambda p: gt.load_arrays(p / "a", like={"x": gt.ones(3), "y": "t"}), gt.ArgumentError, "arrays in like"),
    (lambda p: gt.load_arrays(p / "damaged"), gt.CheckpointError, "a safetensors file"),
    (lambda p: gt.load_checkpoint(p), gt.CheckpointError, "got none. See gt.latest_step"),
    (lambda p: gt.save_checkpoint(p, {"f": print}, step=1), gt.ArgumentError, "at 'f'"),
    (lambda p: gt.save_checkpoint(p, {}, step=-1), gt.ArgumentError, "step >= 0"),
    (lambda p: gt.save_checkpoint(p, {}, step=1, keep=0), gt.ArgumentError, "keep >= 1"),
    (lambda p: gt.set_rng_state(gt.ones(3)), gt.ArgumentError, "gt.get_rng_state"),
]


@pytest.mark.parametrize(("call", "error", "text"), MISTAKES, ids=[text[:25] for _, _, text in MISTAKES])
def test_mistakes_say_what_to_do(call, error, text, tmp_path):
    gt.save_arrays(tmp_path / "a", {"x": gt.ones(3), "y": gt.ones(1)})
    (tmp_path / "damaged").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    with pytest.raises(error, match=text) as caught:
        call(tmp_path)
    assert __file__ in str(caught.value)


# -- checkpoints


@settings(max_examples=25, deadline=None)
@given(
    st.lists(testing.arrays(special=True), max_size=4), st.lists(st.floats() | st.integers() | st.text(), max_size=3)
)
def test_a_checkpoint_is_what_was_saved_to_the_bit(tmp_path_factory, arrays, values):
    folder = tmp_path_factory.mktemp("run")
    tree = {"arrays": arrays, "values": values}
    gt.save_checkpoint(folder, tree, step=1)
    loaded, step = gt.load_checkpoint(folder, like=tree)
    assert step == 1
    assert_same(loaded, tree)


def test_types_weakness_and_layout_are_kept(tmp_path):
    tree = gt.eval({**TREE, "turned": gt.arange(6).reshape(2, 3).T, "some": gt.arange(9).reshape(3, 3)[:, ::2]})
    gt.save_checkpoint(tmp_path, tree, step=3)
    loaded, _ = gt.load_checkpoint(tmp_path, like=tree)
    assert_same(loaded, tree)
    strides = [{k: t[k].to_torch(copy=False).stride() for k in ("turned", "some")} for t in (loaded, tree)]
    assert strides[0]["turned"] == strides[1]["turned"] == (1, 3)
    flat, _ = gt.load_checkpoint(tmp_path)
    assert flat["weak"].aval.weak and set(gt.tree.leaves(flat["key"].tolist())) == {0, 7}


def test_only_the_newest_are_kept_and_a_step_can_be_saved_again(tmp_path):
    for step in (1, 2, 3, 12):
        gt.save_checkpoint(tmp_path, {"x": gt.full((2,), step)}, step=step, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step_000000003", "step_000000012"] and gt.latest_step(tmp_path) == 12
    path = gt.save_checkpoint(tmp_path, {"x": gt.full((2,), 5)}, step=12, keep=None).result()
    assert path.name == "step_000000012" and gt.load_checkpoint(tmp_path, step=12)[0]["x"].tolist() == [5, 5]
    assert gt.load_checkpoint(tmp_path, step=3)[0]["x"].tolist() == [3, 3]
    with pytest.raises(gt.CheckpointError, match=r"of step 4 .*got steps \[3, 12\]"):
        gt.load_checkpoint(tmp_path, step=4)


def test_saving_goes_on_beside_the_program(tmp_path):
    state = {"x": gt.zeros(1000)}
    for step in range(6):
        state = {"x": state["x"] + 1}
        saving = gt.save_checkpoint(tmp_path, state, step=step, wait=False)
    assert saving.result().name == "step_000000005"
    for step in (3, 4, 5):
        assert float(gt.load_checkpoint(tmp_path, step=step)[0]["x"][0]) == step + 1


def test_a_failure_beside_the_program_is_raised_by_the_next_call(tmp_path, monkeypatch):
    gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=1)
    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
        saving = gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=2, wait=False)
        assert isinstance(saving.exception(), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=3)
    assert gt.latest_step(tmp_path) == 1
    gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=4)
    assert sorted(os.listdir(tmp_path)) == ["step_000000001", "step_000000004"]


CANNOT_WRITE = """
import resource, signal, sys
import gtrace as gt
x = gt.eval(gt.ones(1000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # stands for a full disk
saving = gt.save_checkpoint(sys.argv[1], {"w": x}, step=3, wait=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("asks", "code"), [("", 1), ("assert isinstance(saving.exception(), OSError)", 0)])
def test_the_end_of_the_program_says_what_was_not_saved(tmp_path, asks, code):
    program = f"import atexit; atexit.register(print, 'others run')\n{CANNOT_WRITE}\n{asks}\nprint('ends')"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == code and done.stdout == "ends\nothers run\n"
    said = f"gtrace: the checkpoint of step 3 in {tmp_path} was not saved: OSError: "
    assert (said in done.stderr) == bool(code)


def test_threads_save_at_once(tmp_path):
    """To one file, and to one folder of checkpoints: every save succeeds, and what is there is one of them."""
    arrays = [gt.eval(gt.full((1 << 16,), float(k))) for k in range(4)]

    def save(k):
        for n in range(5):
            gt.save_arrays(tmp_path / "weights", {"w": arrays[k]})
            gt.save_checkpoint(tmp_path / "run", {"w": arrays[k]}, step=n, wait=n % 2 == 0)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    for w in (gt.load_arrays(tmp_path / "weights")["w"], gt.load_checkpoint(tmp_path / "run")[0]["w"]):
        assert any(bool((w == x).all()) for x in arrays)
    assert sorted(os.listdir(tmp_path)) == ["run", "weights"] and gt.latest_step(tmp_path / "run") == 4


def test_a_folder_that_another_process_writes_into_is_refused(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=1)
    with open(tmp_path / files.LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process does
        (tmp_path / ".step_000000002.writing").mkdir()
        with pytest.raises(gt.CheckpointError, match=r"expected a folder for itself, got .* in use\. Give each run"):
            gt.save_checkpoint(tmp_path, {"x": gt.zeros(1)}, step=1)
        assert (tmp_path / ".step_000000002.writing").exists(), "what the other process writes is left alone"
    assert float(gt.load_checkpoint(tmp_path)[0]["x"][0]) == 1
    gt.save_checkpoint(tmp_path, {"x": gt.zeros(1)}, step=1)  # the other one was killed: its lock is gone
    assert float(gt.load_checkpoint(tmp_path)[0]["x"][0]) == 0 and os.listdir(tmp_path) == ["step_000000001"]


def test_a_checkpoint_that_was_being_replaced_counts(tmp_path):
    gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=1)
    os.rename(tmp_path / "step_000000001", tmp_path / ".step_000000001.replaced")
    (tmp_path / ".step_000000002.writing").mkdir()
    assert gt.latest_step(tmp_path) == 1 and float(gt.load_checkpoint(tmp_path)[0]["x"][0]) == 1
    gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=1)
    gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=2)
    assert sorted(os.listdir(tmp_path)) == ["step_000000001", "step_000000002"]


def test_what_gtrace_did_not_save_stays(tmp_path):
    """Folders of others with the names of checkpoints, what they put into checkpoints, and links."""
    for name in ("step_1", "step_000000007", ".step_notes.writing", ".step_5.writing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").write_text("theirs")
    elsewhere = tmp_path / "elsewhere"
    gt.save_checkpoint(elsewhere, {"x": gt.ones(1)}, step=3)
    (tmp_path / "step_000000003").symlink_to(elsewhere / "step_000000003")
    for step in (10, 11, 10, 12, 13):
        path = gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=step, keep=2).result()
        (path / "notes.txt").write_text(f"theirs {step}")
        (path / "parts").mkdir(exist_ok=True)
        (path / "parts" / "notes.txt").write_text("theirs")
    assert gt.latest_step(tmp_path) == 13 and gt.load_checkpoint(tmp_path, step=3)[1] == 3
    for name in ("step_1", "step_000000007", ".step_notes.writing", ".step_5.writing"):
        assert (tmp_path / name / "model.pt").read_text() == "theirs"
    for step in (10, 11):
        files = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.glob(f"step_0000000{step}/**/*.*"))]
        assert files == [f"step_0000000{step}/notes.txt", f"step_0000000{step}/parts/notes.txt"]
        assert (tmp_path / files[0]).read_text() == f"theirs {step}"
    with pytest.raises(gt.CheckpointError, match=r"step_000000007, got something else\. Save into another folder"):
        gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=7)


def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path):
    path = gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=1).result()
    for name in ("arrays.safetensors", "checkpoint.json"):
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(gt.CheckpointError, match="no plain file"):
            gt.load_checkpoint(tmp_path)
    with pytest.raises(gt.CheckpointError, match="no plain file"):
        gt.load_arrays(path / "arrays.safetensors")


def test_an_error_quotes_no_whole_file(tmp_path):
    header = b'{"x":{"dtype":"' + b"F" * 100_000 + b'","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(gt.CheckpointError, match="a safetensors file") as caught:
        gt.load_arrays(tmp_path / "a")
    assert len(str(caught.value)) < 1000 and str(tmp_path / "a") in str(caught.value)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    path = gt.save_checkpoint(tmp_path, {"x": gt.ones(1)}, step=1).result()
    (path / "checkpoint.json").write_text('{"format": 99}')
    with pytest.raises(gt.CheckpointError, match="expected format 2, got 99"):
        gt.load_checkpoint(tmp_path)
    (path / "checkpoint.json").write_text("[" * 100_000)
    with pytest.raises(gt.CheckpointError, match=r"checkpoint\.json: its JSON is nested too deeply"):
        gt.load_checkpoint(tmp_path)


ONE = Mesh(np.array([0]), ("data",))


@pytest.fixture
def saved(tmp_path):
    """A checkpoint with every kind of leaf, one of them an array over processes."""
    tree = {"w": gt.ones((3, 4)), "n": 3, "text": "t", "rate": 0.5, "turned": gt.eval(gt.ones((2, 3)).T)}
    tree["rows"] = gt.device_put(gt.ones((4, 4)), NamedSharding(ONE, P("data")))
    return gt.save_checkpoint(tmp_path, tree, step=1).result(), tree


def change(path, **fields):
    """Change the entry of `w` in a manifest, with a checksum that fits."""
    data = json.loads(path.read_bytes())
    data["leaves"]["w"].update(fields)
    del data["checksum"]
    path.write_text(json.dumps(json_fields.with_checksum(data)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "f3r[3,4]"}, "the type of 'w'"), ({"type": 3}, "the type of 'w'"),
        ({"type": "f32[3,5]"}, r"'w' of float32\[3, 5\], got float32\[3, 4\] in .*arrays\.safetensors"),
        ({"type": "i32[3,4]"}, r"'w' of int32\[3, 4\]"), ({"type": "f32[0,9223372036854775808]"}, "the type of 'w'"),
        ({"strides": [2**40, 1]}, "strides of f32"), ({"strides": "ab"}, "strides of f32"), ({"value": []}, "a text"),
        ({"type": "f32[3,4]{x|x=99999999999}"}, "the type of 'w'"),
        ({"type": "f32[3,4]{x|x=2@1.0}"}, r"1\.safetensors, got no such file"),
    ],
)  # fmt: skip
def test_entries_that_cannot_be_right_are_refused(saved, fields, words):
    folder, _ = saved
    change(folder / "checkpoint.json", **fields)
    with pytest.raises(gt.CheckpointError, match=words):
        gt.load_checkpoint(folder.parent)


def test_no_damage_gives_an_error_of_another_library(saved):
    """Any byte of any file, and any field of a manifest: an error of gtrace, or what was saved."""
    folder, tree = saved
    rng, refused = random.Random(0), 0
    for name in ("checkpoint.json", "arrays.safetensors", "parts/0.safetensors"):
        whole = (folder / name).read_bytes()
        for k in range(100):
            manifest = name.endswith("json") and k % 4
            damaged = damage.of_json(rng, whole, checksum=k % 2 == 0) if manifest else damage.of_bytes(rng, whole)
            (folder / name).write_bytes(damaged)
            for like in (None, tree):
                try:
                    gt.tree_map(repr, gt.load_checkpoint(folder.parent, like=like))
                except gt.errors.GtraceError:
                    refused += 1
        (folder / name).write_bytes(whole)
    assert refused > 400
    assert_same(gt.load_checkpoint(folder.parent, like=tree)[0], tree)


class Planted:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_loading_runs_no_code(saved, tmp_path):
    """Whatever file of a checkpoint is a pickle: it is not unpickled."""
    folder, tree = saved
    mark = tmp_path / "code has run"
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in (*files, folder / "parts" / ".metadata", folder / "parts" / "__0_0.distcp"):
        kept = path.read_bytes() if path in files else None
        path.write_bytes(pickle.dumps(Planted(mark)))
        with contextlib.nullcontext() if kept is None else pytest.raises(gt.CheckpointError):
            gt.load_checkpoint(folder.parent, like=tree)
        if kept is not None:
            path.write_bytes(kept)
    assert not mark.exists()


def step(state):
    """A step that draws from a key, and from the global stream, and counts."""
    key, own = gt.random.split(state["key"])
    noise = gt.random.normal(own, (4,)) + gt.randn(4)
    grad = gt.grad(lambda w: ((w @ state["m"] - noise) ** 2).sum())(state["w"])
    momentum = 0.9 * state["momentum"] + grad
    rate = 0.01 / (1 + state["count"])
    return {**state, "w": state["w"] - rate * momentum, "momentum": momentum, "key": key, "count": state["count"] + 1}


def test_a_run_goes_on_to_the_bit(tmp_path):
    gt.seed(5)
    matrix = gt.eval(gt.random.normal(gt.random.key(2), (4, 4)).T)
    state = {"w": gt.ones(4), "m": matrix, "momentum": gt.zeros(4), "key": gt.random.key(1), "count": 0}
    with gt.config(auto_compile=False):
        for k in range(12):
            if k == 5:
                gt.save_checkpoint(tmp_path, (state, gt.get_rng_state()), step=k, wait=False)
            state = step(state)
        gt.seed(99)
        (again, stream), done = gt.load_checkpoint(tmp_path, like=(state, gt.get_rng_state()))
        gt.set_rng_state(stream)
        for _ in range(done, 12):
            again = step(again)
    assert_same(again, state)


SAVES = """
import sys
import gtrace as gt
folder = sys.argv[1]
first = gt.latest_step(folder)
x = gt.zeros(200_000) if first is None else gt.load_checkpoint(folder, like=gt.zeros(200_000))[0]
for step in range(0 if first is None else first + 1, 10**9):
    x = x + 1
    gt.save_checkpoint(folder, x, step=step, keep=2, wait=step % 2 == 0)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_a_killed_save_loses_nothing(tmp_path):
    """kill -9 at any moment: the newest checkpoint is whole, and at most the one being written is missing."""
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", SAVES, str(tmp_path)], stdout=-1, text=True) as process:
            lines = [process.stdout.readline() for _ in range(3)]
            time.sleep(random.random() / 20)
            process.kill()
            lines += process.stdout.read().splitlines()
        x, found = gt.load_checkpoint(tmp_path, like=gt.zeros(200_000))
        assert found >= int(lines[-1]) - 1, "the last one may still have been written beside the program"
        assert bool((x == found + 1).all())
