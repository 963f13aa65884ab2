"""A save ends with a file that can be read, or with an error and the earlier checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import launch
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt

NAMES = st.one_of(
    st.sampled_from(["__metadata__", "w", "a.b", "", "\0", "\ud800", "é", "x" * 300, "../x", "value"]),
    st.text(st.characters(), max_size=4),
)

VALUES = st.one_of(
    st.just(gt.ones(2)), st.just(gt.zeros((0, 3))), st.booleans(), st.floats(), st.text(st.characters(), max_size=3),
    st.integers(-(10**18), 10**18),
)  # fmt: skip

TREES = st.recursive(VALUES, lambda inner: st.dictionaries(NAMES, inner, max_size=4) | st.lists(inner, max_size=3))


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_a_tree_is_refused_or_comes_back(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("run")
    gt.save_checkpoint(folder, {"good": gt.ones(1)}, step=1)
    try:
        gt.save_checkpoint(folder, tree, step=2, keep=1)
    except gt.GtraceError:
        assert os.listdir(folder) == ["step_000000001"]
        tree = {"good": gt.ones(1)}
    again, _ = gt.load_checkpoint(folder, like=tree)
    assert repr(again) == repr(tree)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, st.just(gt.ones(2)), max_size=4), st.dictionaries(NAMES, NAMES, max_size=3))
def test_arrays_are_refused_or_come_back(tmp_path_factory, arrays, texts):
    file = tmp_path_factory.mktemp("arrays") / "file"
    try:
        gt.save_arrays(file, arrays, metadata=texts)
    except gt.ArgumentError:
        assert not os.listdir(file.parent)
    else:
        assert repr(gt.load_arrays(file, like=arrays)) == repr(arrays) and gt.load_metadata(file) == texts


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such paths")
def test_a_path_that_is_no_utf8_is_refused(tmp_path):
    path = tmp_path / "\udcff"
    for save in (lambda: gt.save_checkpoint(path, {"x": gt.ones(1)}, step=1), lambda: gt.save_arrays(path, gt.ones(1))):
        with pytest.raises(gt.ArgumentError, match="UTF-8"):
            save()
    assert not os.listdir(tmp_path)


def cut(tensors, file, metadata):
    safetensors.torch.save_file({name: x[:1] for name, x in tensors.items()}, file, metadata)


def changed(tensors, file, metadata):
    safetensors.torch.save_file({name: x + 1 for name, x in tensors.items()}, file, metadata)


def other_dtype(tensors, file, metadata):
    safetensors.torch.save_file({name: x.view(torch.int32) for name, x in tensors.items()}, file, metadata)


def lost(tensors, file, metadata):
    safetensors.torch.save_file({}, file, metadata)


def half(tensors, file, metadata):
    safetensors.torch.save_file(tensors, file, metadata)
    os.truncate(file, os.path.getsize(file) - 3)


@pytest.mark.parametrize("write", [cut, changed, other_dtype, lost, half])
def test_what_was_written_wrongly_replaces_nothing(tmp_path, monkeypatch, write):
    good, tree = {"x": gt.ones(3)}, {"x": gt.zeros(3)}
    gt.save_checkpoint(tmp_path / "run", good, step=1)
    gt.save_arrays(tmp_path / "file", good)
    original = safetensors.torch.save_file

    def once(*args):
        with monkeypatch.context() as inner:
            inner.setattr(safetensors.torch, "save_file", original)
            write(*args)

    monkeypatch.setattr(safetensors.torch, "save_file", once)
    for step in (1, 2):
        with pytest.raises(OSError, match="save_checkpoint"):
            gt.save_checkpoint(tmp_path / "run", tree, step=step, keep=1)
    with pytest.raises(OSError, match="save_arrays"):
        gt.save_arrays(tmp_path / "file", tree)
    assert os.listdir(tmp_path / "run") == ["step_000000001"] and sorted(os.listdir(tmp_path)) == ["file", "run"]
    for x in (gt.load_checkpoint(tmp_path / "run")[0]["x"], gt.load_arrays(tmp_path / "file")["x"]):
        assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("step", [1, 2])
def test_a_disk_that_fails_at_any_call_loses_nothing(tmp_path, monkeypatch, call, step):
    """The first call fails, then the second, and so on until the save succeeds."""
    original = getattr(os, call)
    for failing in range(30):
        folder, calls = tmp_path / str(failing), iter(range(1000))
        gt.save_checkpoint(folder, {"x": gt.ones(3)}, step=1)

        def fail(*args, calls=calls, failing=failing, **kwargs):
            if next(calls) == failing:
                raise OSError(28, "No space left on device")
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            try:
                gt.save_checkpoint(folder, {"x": gt.zeros(3)}, step=step, keep=1)
            except OSError as error:
                assert error.errno == 28
            else:
                break
        assert gt.load_checkpoint(folder)[0]["x"].tolist() in ([1, 1, 1], [0, 0, 0])
        assert not list(folder.glob("**/*.tmp")) and not list(folder.glob("*.writing"))
        gt.save_checkpoint(folder, {"x": gt.zeros(3)}, step=step, keep=1)
        assert os.listdir(folder) == [f"step_{step:09d}"]
    assert 1 < failing < 29


def test_nothing_is_written_where_a_link_leads(tmp_path):
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    run.mkdir()
    (run / ".step_000000001.writing").symlink_to(outside)
    with pytest.raises(gt.CheckpointError, match="which is a link"):
        gt.save_checkpoint(run, {"x": gt.ones(1)}, step=1)
    assert not os.listdir(outside)
    (run / ".step_000000002.writing").mkdir()
    (run / ".step_000000002.writing" / "checkpoint.json").symlink_to(outside / "file")
    gt.save_checkpoint(run, {"x": gt.ones(1)}, step=2)
    assert not os.listdir(outside) and gt.latest_step(run) == 2


# -- other processes


def run(program, *args, **options):
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, args)], capture_output=True, text=True, timeout=120, **options
    )


FORKED = """
import os, sys, threading
import gtrace as gt, safetensors.torch as library
write, go = library.save_file, threading.Event()
library.save_file = lambda *args: (go.wait(60), write(*args))
x = gt.eval(gt.ones(3))
saving = gt.save_checkpoint(sys.argv[1], {"x": x}, step=1, wait=False)
if os.fork() == 0:
    go.set()
    for call in (saving.result, saving.exception):
        try:
            call()
        except gt.CheckpointError as error:
            print("a fork of it" in str(error), flush=True)
    print(gt.latest_step(sys.argv[1]), gt.save_checkpoint(sys.argv[1] + "/own", {"x": x}, step=2).result().name)
    sys.exit()
print(os.wait()[1])
go.set()
print(saving.result().name, gt.latest_step(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_fork_during_a_save_does_not_wait_for_it(tmp_path):
    done = run(FORKED, tmp_path)
    assert done.stdout.split() == ["True", "True", "None", "step_000000002", "0", "step_000000001", "1"], done


AT_EXIT = """
import atexit, sys
def save(step, tree, **options):
    try:
        gt.save_checkpoint(sys.argv[1], tree(), step=step, **options)
    except gt.GtraceError as error:
        print(type(error).__name__, "its end" in str(error))
atexit.register(save, 1, lambda: {"another": [x, {"tree": x}]})
atexit.register(save, 2, lambda: x, wait=False)
import gtrace as gt
atexit.register(save, 3, lambda: {"x": x})
atexit.register(save, 4, lambda: {"x": x}, wait=False)
x = gt.ones(1_000_000)
"""


@pytest.mark.slow
def test_saves_at_the_end_of_the_program(tmp_path):
    with launch.from_scratch():  # the others have imported gtrace before any line of the program
        done = run(AT_EXIT, tmp_path)
    assert (done.returncode, done.stdout) == (0, "ArgumentError True\n"), done
    assert sorted(os.listdir(tmp_path)) == [f"step_{k:09d}" for k in (2, 3, 4)]
    for step in (2, 3, 4):
        (x,) = gt.load_checkpoint(tmp_path, step=step)[0].values()
        assert x.shape == (1_000_000,)


SEVERAL = """
import atexit, os, sys, time
import gtrace as gt
from gtrace.sharding import NamedSharding, P, make_mesh
import safetensors.torch as library
folder, rank = sys.argv[1], int(os.environ["RANK"])
x = gt.device_put(gt.ones((4, 2)), NamedSharding(make_mesh((-1,), ("data",)), P("data")))
def refused(call, *kinds):
    try:
        call()
    except kinds as error:
        return
    raise AssertionError("not refused")
def save(tree, step, to=folder):
    return gt.save_checkpoint(to, tree, step=step, keep=1)
save({"x": x}, 1)
gt.save_arrays(folder + "/file", {"x": x})
plain = gt.eval(gt.ones((4, 2)))
trees = [
    {"xy"[rank]: x}, {"x": x, "y": "z" if rank else 1}, {"x": x if rank else plain}, {"x": plain, "xy"[rank] + "y": x},
    {"x": x} if rank else {"x": x, "more": x}, {"x": x, "n": gt.array(1 if rank else 1.0)}, {"n": gt.ones(3 + rank)},
]
for tree in trees:
    refused(lambda: save(tree, 2), gt.CheckpointError)
refused(lambda: save({"x": x}, 2 + rank), gt.CheckpointError)
refused(lambda: save({"x": x}, 2, folder + "/other" * rank), gt.CheckpointError, OSError)
refused(lambda: gt.save_arrays(folder + "/file", {"xy"[rank]: x}), gt.CheckpointError)
refused(lambda: gt.save_arrays(folder + "/none/file", {"x": x}), gt.CheckpointError, OSError)
write = library.save_file
def full(*args):
    raise OSError(28, "No space left on device")
library.save_file = full if rank else write
refused(lambda: save({"x": x}, 2), gt.CheckpointError, OSError)
library.save_file = write
if os.fork() == 0:
    try:
        refused(lambda: save({"x": x}, 2), gt.DistributedError)
    except BaseException:
        os._exit(1)
    os._exit(0)
assert os.wait()[1] == 0
assert gt.load_checkpoint(folder)[1] == 1 and list(gt.load_arrays(folder + "/file")) == ["x"]
def last():
    save({"x": x * 2}, 4)
    started = time.monotonic()
    if rank == 0:
        refused(lambda: save({"x": x}, 5), gt.DistributedError)
        assert time.monotonic() - started < 30
    else:
        time.sleep(7)
    print("ended", flush=True)
atexit.register(last)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_processes_that_do_not_do_the_same(tmp_path):
    """Other names, types, steps, folders; a full disk in one; a fork; a save at the end, and one of the first alone."""
    script = tmp_path / "script.py"
    script.write_text(SEVERAL)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, tmp_path / "run"],
        env={**os.environ, "GT_COLLECTIVE_TIMEOUT": "5"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0 and "ended" in done.stdout and "Error" not in done.stderr, done.stdout + done.stderr
    tree, step = gt.load_checkpoint(tmp_path / "run")
    assert step == 4 and tree["x"].tolist() == [[2, 2]] * 4
    assert sorted(path.name for path in Path(tmp_path, "run").glob("*step*")) == ["step_000000004"]
