"""Arrays over several processes: what one process can see of them, and four and two processes that run one program."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import lockstep
import numpy as np
import pytest

import gtrace as gt
from gtrace.core.ir.graph import print_graph
from gtrace.core.partitioner import processes
from gtrace.core.runtime import sharded
from gtrace.distributed.estimate import Speeds, work
from gtrace.sharding import Mesh, NamedSharding, P, make_mesh, visualize
from gtrace.testing import assert_close

TESTS = Path(__file__).resolve().parent
ONE = make_mesh((-1,), "data")


def environment(**more):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GT_CONFIG")}
    return env | {"OMP_NUM_THREADS": "1", "GT_AUTO_COMPILE": "0", "GT_BACKGROUND": "0"} | more


# -- one process


def test_a_mesh_of_one_process_changes_no_number():
    x = gt.device_put(np.arange(12, dtype=np.float32).reshape(4, 3), NamedSharding(ONE, P("data")))
    assert x.sharding.spec == P("data", None) and x.sharding.mesh == ONE
    y = gt.jit(lambda x: gt.with_sharding(gt.sin(x) @ x.T, NamedSharding(ONE, P(None, "data"))), backend="eager")(x)
    np.testing.assert_allclose(y.numpy(), np.sin(x.numpy()) @ x.numpy().T, rtol=1e-5, atol=1e-5)
    assert y.sharding.spec == P(None, "data")
    (shard,) = y.addressable_shards
    assert (shard.rank, shard.replica_id, shard.data.shape) == (0, 0, (4, 4))
    assert gt.ones(3).sharding is None
    assert (x + gt.ones(3)).sharding.is_fully_replicated
    with gt.config(debug_nans=True):
        assert float((x * 2).sum()) == 132
        with pytest.raises(gt.NonFiniteError):
            gt.eval(gt.log(x - 100))


def test_sharded_values_are_inputs_of_transforms_and_loops():
    x = gt.device_put(np.arange(12.0).reshape(4, 3), NamedSharding(ONE, P("data")))
    total, rows = gt.scan(lambda c, row: (c + row, c), x[0], x)
    np.testing.assert_array_equal(total.numpy(), x.numpy().sum(0) + x.numpy()[0])
    assert rows.shape == (4, 3)
    end = gt.while_loop(lambda c: c.sum() < 100, lambda c: c * 2, x[0])
    np.testing.assert_array_equal(end.numpy(), [0, 64, 128])
    np.testing.assert_array_equal(gt.cond(True, lambda v: v + 1, lambda v: v, x).numpy(), x.numpy() + 1)
    for f in (lambda v: (v**2).sum(), gt.checkpoint(lambda v: (v**2).sum())):
        np.testing.assert_array_equal(gt.grad(f)(x).numpy(), 2 * x.numpy())
        np.testing.assert_array_equal(gt.jit(gt.grad(f), backend="eager")(x).numpy(), 2 * x.numpy())
    np.testing.assert_array_equal(gt.vmap(lambda row: row.sum())(x).numpy(), x.numpy().sum(1))
    _, tangent = gt.jvp(lambda v: gt.with_sharding(v * v, NamedSharding(ONE, P("data"))), (x,), (x,))
    np.testing.assert_array_equal(tangent.numpy(), 2 * x.numpy() ** 2)


MISTAKES = [
    (lambda: Mesh([0, 0], "data"), "distinct ranks"),
    (lambda: Mesh([[0, 1]], "data"), "one axis name per dimension"),
    (lambda: Mesh([0, 1], ("a b",)), "names of axes"),
    (lambda: NamedSharding(ONE, P("model")), "axes of the mesh, got 'model'"),
    (lambda: NamedSharding(ONE, P("data", "data")), "each axis once"),
    (lambda: P(3), "names of mesh axes"),
    (lambda: make_mesh((4,), "data"), r"product is the number of processes, got \(4,\) for 1 process. Start as many"),
    (lambda: gt.device_put(gt.ones(4), NamedSharding(Mesh(range(4), "data"), P("data"))), "gtrace run --workers 4"),
    (lambda: gt.device_put(gt.ones(4), NamedSharding(ONE, P(None, "data"))), "no more entries than dimensions"),
    (lambda: gt.with_sharding(gt.ones(4), P("data")), "`with mesh:` block"),
    (lambda: gt.from_process_local(NamedSharding(ONE, P("data")), gt.ones(4), (3,)), r"a part of shape \(3,\)"),
    (lambda: visualize(gt.ones(3)), "laid out over a mesh"),
    (
        lambda: gt.eval(
            gt.device_put(gt.ones(2), NamedSharding(ONE, P("data")))
            + gt.device_put(gt.ones(2), NamedSharding(make_mesh((1,), "other"), P("other")))
        ),
        "arrays of one mesh",
    ),
    (
        lambda: gt.export(
            lambda x: gt.with_sharding(x, NamedSharding(ONE, P("data"))), gt.ShapeDtypeStruct((3,), gt.float32)
        ),
        "a program of one process",
    ),
]


@pytest.mark.parametrize(("call", "text"), MISTAKES, ids=[text[:30] for _, text in MISTAKES])
def test_mistakes_say_what_to_do(call, text):
    with pytest.raises(gt.GtraceError, match=text) as caught:
        call()
    assert __file__ in str(caught.value)


def test_a_mesh_is_that_of_the_thread_that_entered_it():
    seen = []

    def elsewhere():
        with pytest.raises(gt.GtraceError, match="`with mesh:` block"):
            gt.with_sharding(gt.ones(4), P("data"))
        seen.append(True)

    with ONE:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert gt.with_sharding(gt.ones(4), P("data")).sum().item() == 4.0
    assert seen


def test_a_picture_of_a_sharding():
    mesh = Mesh(np.arange(4).reshape(2, 2), ("data", "model"))
    assert visualize(NamedSharding(mesh, P(None, "model")), (4, 4)).splitlines()[1] == "│ 0,2 │ 1,3 │"
    assert visualize(NamedSharding(mesh, P(("model", "data"))), (8,)).splitlines()[3] == "│ 2 │"


def test_recording_without_shardings_knows_nothing_of_them():
    """The type of an array of one process is the object that it always was, and so are instructions."""
    x = gt.device_put(gt.ones((4, 3)), NamedSharding(ONE, P("data")))
    gt.eval(x)
    assert x.aval is not gt.ones((4, 3)).aval and x.aval.plain is gt.ones((4, 3)).aval
    assert gt.sin(x).aval is gt.sin(gt.ones((4, 3))).aval


# -- the signals file


def test_plan_checks_a_file(tmp_path, capsys):
    from gtrace.commands.cli import main

    file = tmp_path / "signals.yaml"
    file.write_text("batch: {shard: {axis: 0}, backward: weights}\nweights:\n  shard: {replicated: true}\n")
    assert main(["plan", "--check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "batch: split along axis 0 over all workers; gradients as 'weights'",
        "weights: the same on all workers",
    ]
    file.write_text("batch:\n  shard: {axis: -1}\n")
    assert main(["plan", "--check", str(file)]) == 2
    assert f"{file}:2" in capsys.readouterr().err


SCRIPT = """
import sys
import gtrace as gt
from gtrace.sharding import NamedSharding, P, make_mesh
import numpy as np
mesh = make_mesh((64, 16), ("data", "model"))
x = gt.device_put(np.ones((128, 32), np.float32), NamedSharding(mesh, P("data")))
w = gt.device_put(np.ones((32, 64), np.float32), NamedSharding(mesh, P(None, "model")))
for _ in range(3):
    w = gt.eval(w - 0.1 * gt.grad(lambda w: (x @ w).sum())(w))
print(w.shape, w.addressable_shards[0].data.shape, sys.argv[1:])
"""


@pytest.mark.slow
def test_plan_runs_a_script_for_processes_that_do_not_exist(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}\nsys.exit('enough')\n")
    command = [sys.executable, "-m", "gtrace", "plan", "--mesh", "data=64,model=16"]
    command += ["--html", str(tmp_path / "plan.html"), str(script), "--size", "3"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "enough\n"), "the plans of a script that exits"
    # the gradient of a process has 32 x 4 elements of 4 bytes
    assert done.stdout.splitlines() == [
        "(32, 64) (32, 4) ['--size', '3']",
        "3 calls: 1024 processes (data=64,model=16): inputs 768 B, outputs 512 B, at most 32.8 KiB at once,"
        f" {2 * 63 / 64 * 512:.0f} B sent by each",
        f"  1 all_reduce  over data  {2 * 63 / 64 * 512:.0f} B",
        "  a call takes about 20 us: computing 1.39 ns, sending 20 us",
    ]
    page = (tmp_path / "plan.html").read_text()
    assert "http" not in page and page.count("<figure>") == 2
    assert "P(None, &#x27;model&#x27;)" in page and "f32[32,64]" in page
    # the 16 parts of the weights, with the 64 processes that hold each
    assert f"<title>{','.join(str(k * 16 + 3) for k in range(64))}</title>" in page


def test_estimates_follow_from_what_is_computed_and_sent():
    mesh = Mesh(range(4), "data")
    x = gt.ShapeDtypeStruct((1000, 256), "float32", sharding=NamedSharding(mesh, P("data")))
    w = gt.ShapeDtypeStruct((256, 512), "float32", sharding=NamedSharding(mesh, P()))

    def f(x, w):
        w, _ = gt.scan(lambda w, _: (w - x.T @ gt.tanh(x @ w), None), w, None, length=3)
        return w

    plan = gt.sharding.plan(f, x, w)
    assert plan.work.flops == 3 * 2 * 2 * 250 * 256 * 512
    assert plan.moved == 3 * 2 * 3 / 4 * 256 * 512 * 4
    speeds = Speeds(flops=1e9, memory=1e18, network=1e6, latency=0.5)
    got = plan.estimate(speeds)
    assert got.computing == plan.work.flops / 1e9
    assert_close(got.sending, plan.moved / 1e6 + 3 * 0.5)
    windows = gt.make_graph(lambda x, w: gt.numpy.convolve(x, w, "valid"))(gt.ones(10), gt.ones(4))
    assert work(windows).flops == 2 * 7 * 4


def test_on_one_process_signals_lay_nothing_out():
    gt.register_config("sharding_alone", gt.SignalConfig(shard=gt.ShardConfig(axis=7, workers=[0, 1, 2])))
    with gt.signal.context("sharding_alone"):
        x = gt.signal.tensor(gt.ones(3), name="sharding_alone") * 2
    assert x.sharding is None


def test_what_is_computed_beside_a_sharded_program_stays_with_its_process():
    x, y = gt.device_put(gt.ones(3), NamedSharding(ONE, P("data"))), gt.ones(3)
    gt.eval(x, y)
    a, b, c = x * 2, y * 2, y + x
    assert a.sharding == c.sharding == NamedSharding(ONE, P(None)) and b.sharding is None
    a, b, c = gt.jit(lambda x, y: (x * 2, y * 2, y + x), backend="eager")(x, y)
    assert a.sharding == c.sharding == NamedSharding(ONE, P(None)) and b.sharding is None
    other = make_mesh((1,), "other")
    z = gt.device_put(gt.ones(3), NamedSharding(other, P("other")))
    d, e = x * 3, z * 3
    assert d.sharding.mesh == ONE and e.sharding.mesh == other


def test_a_second_run_divides_nothing(tmp_path, monkeypatch):
    """What was divided is kept on disk, under the program, its layouts and the rank; damaged files are made again."""

    def step(w, xs):
        def one(w, x):
            return w - 0.1 * gt.grad(lambda w: ((gt.tanh(x @ w) - 0.1) ** 2).mean())(w), None

        return gt.scan(one, gt.sin(w) * 0.5 + 1, gt.cos(xs) * 2 - xs)[0].sum()

    mesh = Mesh(range(4), "data")
    graph = gt.make_graph(step)(gt.ones((3, 2)), gt.ones((5, 8, 3)))
    shardings = [NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "data"))]
    graph = lockstep.placed(graph, shardings)
    divided = []
    original = sharded.divide
    monkeypatch.setattr(sharded, "divide", lambda *args: divided.append(args) or original(*args))
    monkeypatch.setattr(sharded, "LEAST_KEPT", 1)
    with gt.config(background=True, cache_dir=str(tmp_path)), processes.pretend(4):
        first = sharded.localize(graph)
        again = sharded.localize(graph)
        assert len(divided) == 1 and first is not again
        assert print_graph(again.graph) == print_graph(first.graph) and again.transfers == first.transfers
        sharded.localize(lockstep.placed(graph, [NamedSharding(mesh, P("data")), shardings[1]]))
        assert len(divided) == 2
        for file in tmp_path.glob("*.divided"):
            file.write_text(file.read_text().replace("all_reduce", "all_gather"))
        with pytest.warns(gt.CacheWarning, match="checksum"):
            assert sharded.localize(graph).transfers == first.transfers
        assert len(divided) == 3


# -- several processes


@pytest.mark.slow
def test_four_processes_compute_what_one_does(tmp_path):
    """See launched_sharding.py."""
    command = [sys.executable, "-m", "gtrace", "run", "--quiet", "--workers", "4"]
    command += [str(TESTS / "launched_sharding.py"), str(tmp_path)]
    with subprocess.Popen(
        command, env=environment(GT_COLLECTIVE_TIMEOUT="60"), text=True, stdout=-1, stderr=-1, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out + err
    for rank in range(4):
        for check, result in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            assert result == "ok", f"{check} at rank {rank}: {result}"
    # what four processes have saved, one reads
    state, step = gt.load_checkpoint(tmp_path / "run")
    value = np.arange(70.0).reshape(10, 7) * 2
    assert step == 1 and state.pop("rate") == 0.2
    np.testing.assert_array_equal(state.pop("few").numpy(), value[:2, 0])
    for name, x in state.items():
        np.testing.assert_array_equal(x.numpy(), value, err_msg=name)
    row = {"rows": NamedSharding(ONE, P("data"))}
    like = {k: gt.ShapeDtypeStruct(x.shape, x.dtype, sharding=row.get(k)) for k, x in state.items()}
    like |= {"few": gt.ShapeDtypeStruct((2,), "float64"), "rate": 0.0}
    assert gt.load_checkpoint(tmp_path / "run", like=like)[0]["rows"].sharding == NamedSharding(ONE, P("data", None))


RESUMES = """
import os, signal, sys
import gtrace as gt
from gtrace.sharding import *
folder, rows = sys.argv[1], NamedSharding(make_mesh((-1,), "data"), P("data"))
x, done = gt.device_put(gt.ones(10), rows), 0
if gt.latest_step(folder) is not None:
    x, done = gt.load_checkpoint(folder, like=x)
for step in range(done + 1, 31):
    x = gt.sin(x * 1.5) + x.sum() / 20
    gt.save_checkpoint(folder, x, step=step, wait=False)
    if step == 17 and process_index() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
if process_index() == 0:
    print(done, repr(x.tolist()))
else:
    x.tolist()
"""


@pytest.mark.long
def test_a_run_resumes_after_a_worker_has_died(tmp_path):
    """torchrun starts the processes again, and they go on from the last checkpoint."""
    script = tmp_path / "script.py"
    script.write_text(RESUMES)
    done = subprocess.run(
        [sys.executable, "-m", "gtrace", "run", "--quiet", "--workers=2", "--restarts=1", script, tmp_path / "run"],
        env=environment(), capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, _, values = done.stdout.partition(" ")
    assert 15 <= int(first) <= 17, first
    x = gt.ones(10)
    for _ in range(30):
        x = gt.sin(x * 1.5) + x.sum() / 20
    assert_close(json.loads(values), x.tolist(), check_dtype=False)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


NODES = """
import os
import gtrace as gt
from gtrace.sharding import *
x = gt.device_put(gt.arange(10) * 1.0, NamedSharding(make_mesh((-1,), "data"), P("data")))
print(os.environ["GROUP_RANK"], process_index(), process_count(), float((x * x).sum()), flush=True)
"""


@pytest.mark.slow
def test_two_launchers_run_one_program(tmp_path):
    """As on two machines: each has its own rank and processes."""
    script = tmp_path / "script.py"
    script.write_text(NODES)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    env = environment(PYTHONPATH=str(TESTS.parent))
    launchers = [
        subprocess.Popen([*command, f"--node-rank={k}", script], env=env, text=True, stdout=-1, stderr=-1,
                         start_new_session=True)
        for k in range(2)
    ]  # fmt: skip
    try:
        printed = [launcher.communicate(timeout=180) for launcher in launchers]
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.communicate()
    assert [launcher.returncode for launcher in launchers] == [0, 0], printed
    assert [out.split() for out, _ in printed] == [["0", "0", "2", "285.0"], ["1", "1", "2", "285.0"]]


STEPS = """
import os, signal, sys, threading
import gtrace as gt
from gtrace.sharding import *
last, part = divmod(float(sys.argv[1]), 1)
x = gt.device_put(gt.ones(8), NamedSharding(make_mesh((-1,), "data"), P("data")))
for step in range(1000000):
    if step == last + 1 and process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == last and part and process_index() == 1:
        # somewhere in what follows
        threading.Timer(part * 0.001, os.kill, (os.getpid(), signal.SIGKILL)).start()
    print(float((x * step).sum()), flush=True)
"""


def killed_at(step):
    """Run two processes, by hand as any launcher does, of which the second kills itself; returns how the first ends."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STEPS, str(step)],
            env=environment(RANK=str(k), WORLD_SIZE="2", LOCAL_RANK=str(k), MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            text=True, stdout=-1, stderr=-1,
        )
        for k in range(2)
    ]  # fmt: skip
    try:
        out, err = processes[0].communicate(timeout=120)
        assert processes[1].wait(timeout=60) == -signal.SIGKILL
        return processes[0].returncode, out, err
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_others():
    """The error names what was going on, and arrives soon."""
    code, out, err = killed_at(3)
    assert code == 1
    assert out.split()[:4] == ["0.0", "8.0", "16.0", "24.0"]
    assert "DistributedError: [" in err and "all workers to take part" in err, err


@pytest.mark.long
def test_no_worker_hangs_whenever_another_one_dies():
    """Kills at random steps, and at random places of a step."""
    random = np.random.default_rng(0)
    for step in random.uniform(0, 30, 20):
        code, out, err = killed_at(step)
        assert code == 1 and "DistributedError: [" in err, (step, out, err)
        assert len(out.split()) >= int(step)
