"""``gtrace trace`` and ``gtrace visualize``: logs, Chrome traces, pictures and pages."""

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree

import browser
import pytest

import gtrace as gt
from gtrace.commands.cli import main
from gtrace.commands.trace import TraceFiles
from gtrace.observe.chrome import chrome_trace
from gtrace.observe.page import timeline_page
from gtrace.observe.timeline import LINE, OPERATIONS, SPANS, Span, _nest, read_timelines

SCRIPT = """\
import threading
import gtrace as gt

def work():
    x = gt.ones((16, 16))
    for _ in range(3):
        float((gt.exp(x @ x) * 2).sum())

step = gt.jit(lambda x: (gt.tanh(x) * 2).sum(), backend="eager")
work()
for _ in range(2):
    step(gt.ones(3).block_until_ready())
thread = threading.Thread(target=work, name="other <thread>")
thread.start()
thread.join()
"""


@pytest.fixture
def run(tmp_path):
    """A function that writes a script and traces it; returns the process and the folder of the files."""

    def run(text=SCRIPT, *args, options=(), check=0, name="train.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
        command = [sys.executable, "-m", "gtrace", "trace", "--dir", "out", *options, name, *args]
        environment = os.environ | {"GT_AUTO_COMPILE": "0"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == check, done.stderr
        return done, tmp_path / "out"

    return run


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The folder of a trace of SCRIPT."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "gtrace", "trace", "train.py"]
    subprocess.run(command, cwd=folder, env=os.environ | {"GT_AUTO_COMPILE": "0"}, check=True, capture_output=True)
    return folder


def files(folder, suffix):
    return sorted(folder.glob(f"trace_*{suffix}"))


def load(folder):
    (path,) = files(folder, ".json")
    trace = json.loads(path.read_text())
    check_format(trace)
    return trace["traceEvents"]


def check_format(trace):
    """The rules of the Trace Event Format that viewers rely on."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    slices, arrows = {}, {}
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X", "s", "f")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert event["cat"] in SPANS
            assert event["args"]["line"]
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        else:
            arrows.setdefault(event["id"], {})[event["ph"]] = event
    for lane in slices.values():
        around = []
        for start, end in lane:
            while around and around[-1] <= start + 0.01:
                around.pop()
            assert not around or end <= around[-1] + 0.01, "slices of a lane lie within one another or apart"
            around.append(end)
    for arrow in arrows.values():
        assert set(arrow) == {"s", "f"}
        assert arrow["f"]["bp"] == "e"
        assert arrow["s"]["ts"] <= arrow["f"]["ts"]
        for end in arrow.values():
            lane = slices[end["pid"], end["tid"]]
            assert any(start - 0.01 <= end["ts"] <= stop + 0.01 for start, stop in lane), "an arrow ends at a slice"
    return slices


# the trace


@pytest.mark.slow
def test_a_trace_has_lanes_spans_lines_and_arrows(traced):
    events = load(traced)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes = sorted(names.values())
    assert lanes == ["MainThread", "other <thread>", "shard 0", "shard 0 other <thread>"]
    spans = {}
    for event in events:
        if event["ph"] == "X":
            spans.setdefault((names[event["pid"], event["tid"]], event["cat"]), []).append(event)
    # a small program is on trial, and may take turns with its interpreted form from the second call on
    assert len(spans["shard 0", "run compiled"]) in (1, 2)
    assert len(spans["shard 0 other <thread>", "run interpreted"]) == 3
    assert len(spans["MainThread", "compile"]) == 1
    assert ("MainThread", "canonicalize") in spans
    assert ("other <thread>", "canonicalize") not in spans, "the other thread runs programs that are known"
    script = SCRIPT.splitlines()
    for (lane, kind), found in spans.items():
        for event in found:
            file, _, line = event["args"]["line"].rpartition(":")
            assert file.endswith("train.py"), (lane, kind)
            assert "gt" in script[int(line) - 1] or "float" in script[int(line) - 1] or "step" in script[int(line) - 1]
    (recorded,) = [e for e in spans["MainThread", "record"] if "exp 1" in e["args"]["names"]][:1]
    assert recorded["args"]["operations"] >= 1
    (compiled,) = spans["MainThread", "compile"]
    (arrow,) = [e for e in events if e["ph"] == "f"]
    assert arrow["ts"] == spans["shard 0", "run compiled"][0]["ts"], "from the compile to the first run"
    assert compiled["args"]["signature"] == spans["shard 0", "run compiled"][0]["args"]["signature"]


@pytest.mark.slow
def test_the_log_has_the_columns_of_the_instruction_log(traced):
    (log,) = files(traced, ".log")
    lines = log.read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    kinds = [line.split(" | ")[2].strip() for line in lines]
    assert kinds[0] == "START"
    assert set(kinds) >= {"THREAD", "RECORD", "FORCE", "CANON", "COMPILE", "RUN"}
    assert [int(line.split(" | ")[1][1:]) for line in lines] == list(range(1, len(lines) + 1))


@pytest.mark.slow
def test_the_script_is_what_it_is_without(run):
    script = """
    import sys, gtrace as gt
    print(float(gt.ones(2).sum()), sys.argv, __name__)
    raise SystemExit(3)
    """
    done, folder = run(script, "--lr", "1", check=3)
    assert done.stdout == "2.0 ['train.py', '--lr', '1'] __main__\n"
    assert len(load(folder)) > 3
    assert re.search(r"gtrace trace: \d+ spans in .*\.json in ui\.perfetto\.dev, or:\n  gtrace visualize ", done.stderr)


@pytest.mark.slow
def test_a_script_that_raises_is_traced_to_its_end(run):
    done, folder = run("import gtrace as gt\nfloat(gt.ones(2).sum())\nraise ValueError('oh')\n", check=1)
    assert done.stderr.startswith("Traceback")
    assert "ValueError: oh" in done.stderr
    assert [e["args"]["line"].rpartition(":")[2] for e in load(folder) if e.get("cat") == "run interpreted"] == ["2"]


@pytest.mark.slow
def test_ctrl_c_ends_the_script_and_writes_the_trace(tmp_path):
    (tmp_path / "train.py").write_text(
        "import time, gtrace as gt\nfloat(gt.ones(2).sum())\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "gtrace", "trace", "train.py"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in stderr
    assert len(load(tmp_path)) > 3


@pytest.mark.slow
def test_threads_that_follow_one_another_have_lanes_of_their_own(run):
    script = """
    import threading, gtrace as gt
    for name in ("first", "second", "third"):
        thread = threading.Thread(target=lambda: float(gt.ones(2).sum()), name=name)
        thread.start()
        thread.join()
    """
    done, folder = run(script, options=["--dir", "with space"])
    lanes = {e["args"]["name"] for e in load(folder.parent / "with space") if e["name"] == "thread_name"}
    assert lanes >= {"first", "second", "third"}, "though the system gives all of them one number"
    command = shlex.split(done.stderr.splitlines()[-1])
    assert command[:2] == ["gtrace", "visualize"]
    assert os.path.exists(command[2]), "what is shown can be pasted"


def test_a_trace_that_cannot_be_written_is_said_and_no_traceback(tmp_path, capsys):
    (tmp_path / "trace_a.log").write_text("")
    TraceFiles(tmp_path / "trace_a").write(os.getpid())
    assert re.match(r"gtrace trace: expected to write .*trace_a\.json, got .* is empty", capsys.readouterr().err)


@pytest.mark.long
def test_a_module_is_traced(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("from .helper import f\nf()\n")
    (tmp_path / "pkg" / "helper.py").write_text("import gtrace as gt\ndef f():\n    float(gt.ones(2).sum())\n")
    command = [sys.executable, "-m", "gtrace", "trace", "-m", "pkg.train", "--dir", "the script's"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"GT_AUTO_COMPILE": "0"}, check=True, capture_output=True)
    lines = {e["args"]["line"] for e in load(tmp_path) if e["ph"] == "X"}
    assert lines == {f"{tmp_path / 'pkg' / 'helper.py'}:3"}


@pytest.mark.slow
def test_a_killed_script_leaves_logs_that_can_be_drawn(tmp_path):
    (tmp_path / "train.py").write_text("import os, gtrace as gt\nfloat(gt.ones(2).sum())\nos.kill(os.getpid(), 9)\n")
    subprocess.run([sys.executable, "-m", "gtrace", "trace", "train.py"], cwd=tmp_path, capture_output=True)
    (log,) = files(tmp_path, ".log")
    assert not files(tmp_path, ".json")
    assert main(["visualize", str(log), "--output", str(tmp_path / "trace_later.json")]) == 0
    assert [e["name"][:15] for e in load(tmp_path) if e.get("cat") == "run interpreted"] == ["run interpreted"]


@pytest.mark.slow
def test_processes_of_the_script_are_in_the_trace(run):
    script = """
    import multiprocessing, subprocess, sys
    import gtrace as gt

    def work(n):
        return float((gt.ones(n) * n).sum())

    if __name__ == "__main__":
        work(2)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            print(pool.map(work, [3]))
        subprocess.run([sys.executable, "-c", "import gtrace as gt; float(gt.ones(7).sum())"], check=True)
    """
    done, folder = run(script)
    assert done.stdout == "[9.0]\n"
    events = load(folder)
    assert len({e["pid"] for e in events}) == 3
    assert len({e["pid"] for e in events if e.get("cat") == "run interpreted"}) == 3
    assert len(files(folder, ".log")) == 3
    times = [e["ts"] for e in events if e.get("cat") == "run interpreted"]
    assert max(times) < 300e6, "one time axis"


@pytest.mark.slow
def test_workers_are_shards_of_one_trace(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import numpy, gtrace as gt
        mesh = gt.sharding.make_mesh((2,), ("data",))
        split = gt.sharding.NamedSharding(mesh, gt.sharding.PartitionSpec("data"))
        x = gt.device_put(numpy.ones((4, 4), numpy.float32), split)
        assert float((x * 2).sum()) == 32.0
        """)
    )  # fmt: skip
    command = [sys.executable, "-m", "gtrace", "trace", "--workers", "2", "train.py"]
    environment = os.environ | {"GT_AUTO_COMPILE": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    events = load(tmp_path)
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"shard 0", "shard 1"} <= names
    collectives = [e for e in events if e.get("cat") == "collective"]
    assert {e["args"]["details"].split()[0] for e in collectives} >= {"all_reduce", "compare"}
    assert len({e["pid"] for e in collectives}) == 2


@pytest.mark.slow
def test_seconds_end_the_trace_and_not_the_script(run):
    script = """
    import time, gtrace as gt
    float(gt.ones(2).sum())
    time.sleep(1.2)
    float(gt.ones(3).sum())
    print("done")
    """
    done, folder = run(script, options=["-s", "0.6"])
    assert done.stdout == "done\n"
    assert len([e for e in load(folder) if e.get("cat") == "run interpreted"]) == 1


@pytest.mark.slow
def test_nothing_is_written_for_a_script_without_arrays(run):
    done, folder = run("print(1)")
    assert list(folder.iterdir()) == []
    assert done.stderr == "gtrace trace: nothing was recorded: the script made no Array.\n"


@pytest.mark.parametrize(("argv", "words"), [
    (["absent.py"], "expected the path of a Python script, got 'absent.py'"),
    (["--dir", "/proc/nowhere", __file__], "expected a folder to write to, got '/proc/nowhere'"),
])  # fmt: skip
def test_a_trace_that_cannot_begin_says_why(argv, words, capsys):
    assert main(["trace", *argv]) == 2
    assert words in capsys.readouterr().err
    assert "GT_TRACE" not in os.environ


def test_no_seconds_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["trace", "-s", "0", __file__])
    assert "expected a positive number, got '0'" in capsys.readouterr().err


def test_a_trace_in_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(gt.ConfigError, match=re.escape("[GT_TRACE] expected a path in a folder that can be written")):
        gt.config.update(trace=str(tmp_path / "absent" / "trace"))


@pytest.mark.long
def test_a_compile_of_the_worker_is_a_span_with_an_arrow(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import time, gtrace as gt
        x = gt.ones((64, 64)).block_until_ready()
        end = time.monotonic() + 200
        while not any(p.compiled_calls for p in gt.stats()) and time.monotonic() < end:
            float((gt.exp(gt.tanh(x) * 0.5) + x).sum())
            time.sleep(0.01)
        """)
    )
    settings = {"GT_BACKGROUND": "1", "GT_HOTPATH_THRESHOLD": "5", "GT_COMPILE_SHARE": "1"}
    environment = os.environ | settings | {"GT_CACHE_DIR": str(tmp_path / "store")}
    command = [sys.executable, "-m", "gtrace", "trace", "train.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    events = load(tmp_path)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    (compiled,) = [e for e in events if e.get("cat") == "compile"]
    assert names[compiled["pid"], compiled["tid"]] == "worker"
    (arrow,) = [e for e in events if e["ph"] == "f"]
    assert names[arrow["pid"], arrow["tid"]] == "shard 0"
    assert arrow["ts"] >= compiled["ts"] + compiled["dur"] - 1


# timelines

LOG = """\
  0.100s | #0001 | RECORD   | CLIENT   | matmul   | out=%3 f32[128,256]
  0.101s | #0002 | RECORD   | CLIENT   | exp      | out=%5 f32[128,256]
  0.102s | #0003 | FORCE    | CLIENT   | float    | ops=2 at my script.py:31
  0.110s | #0004 | RUN      | SHARD 0  | graph    | sequence=abc123def456 (INTERPRETED)
  0.120s | #0005 | COMPILE  | WORKER   | Starting | sequence=abc123def456
  0.121s | #0006 | COMPILE  | WORKER   | Starting | sequence=0123456789ab
  0.130s | #0007 | RECORD   | CLIENT   | exp      | out=%3 f32[128,256]
  0.500s | #0008 | COMPILE  | WORKER   | Complete | sequence=abc123def456
  0.510s | #0009 | RUN      | SHARD 0  | graph    | sequence=abc123def456 (COMPILED)
  0.600s | #0010 | RU"""


def test_a_plain_instruction_log_is_a_timeline(tmp_path):
    (tmp_path / "log.txt").write_text(LOG)
    (timeline,) = read_timelines([tmp_path / "log.txt"])
    main_thread, worker, shard = timeline.lanes
    assert [lane.name for lane in timeline.lanes] == ["MainThread", "worker", "shard 0"]
    assert [(s.kind, len(s.operations)) for s in main_thread.spans] == [("record", 2), ("record", 1)]
    assert [o.kind for o in main_thread.spans[0].operations] == ["product", "elementwise"]
    first, second = worker.spans
    assert (first.sequence, second.sequence) == ("abc123def456", "0123456789ab")
    assert (first.start, first.end) == pytest.approx((0.02, 0.4))
    assert (second.start, second.end, second.details) == pytest.approx((0.4, 0.41, "not finished")), "one at a time"
    interpreted, compiled = shard.spans
    assert interpreted.kind == "run interpreted"
    assert interpreted.seconds == pytest.approx(0.008), "since the line before"
    assert interpreted.line == "my script.py:31"
    assert first.swap is compiled


def test_what_is_no_log_is_refused(tmp_path, capsys):
    (tmp_path / "notes").write_text("hello\n")
    output = str(tmp_path / "out.html")
    assert main(["visualize", str(tmp_path / "notes"), "--output", output]) == 2
    assert "expected an instruction log, got" in capsys.readouterr().err
    assert main(["visualize", str(tmp_path / "absent"), "--output", output]) == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "empty").write_text("")
    assert main(["visualize", str(tmp_path / "empty"), "--output", output]) == 2
    assert "which is empty" in capsys.readouterr().err
    (tmp_path / "cut").write_text("  0.1s | #0001 | START    | CLIENT   | process  | pid=3 ra")
    assert main(["visualize", str(tmp_path / "cut"), "--output", output]) == 2
    assert "cut off in its first line" in capsys.readouterr().err
    start = "  0.1s | #0001 | START    | CLIENT   | process  | pid=3 rank=0 wall=1.5 run=r argv=a.py\n"
    for part, damaged in [("wall=1.5", "wall=1&5"), ("wall=1.5", "wall=nan"), ("pid=3 ", ""), ("rank=0", "rank=x"),
                          ("pid=3", "pid=" + "9" * 5000), ("run=r ", "")]:  # fmt: skip
        (tmp_path / "damaged").write_text(start.replace(part, damaged))
        assert main(["visualize", str(tmp_path / "damaged"), "--output", output]) == 2
        assert f"no {part.partition('=')[0]} that can be read" in capsys.readouterr().err
    (tmp_path / "damaged").write_text(start.replace("#0001", "#" + "1" * 5000))
    assert main(["visualize", str(tmp_path / "damaged"), "--output", output]) == 2
    assert "without a line of one" in capsys.readouterr().err
    assert not os.path.exists(output)


def test_spans_of_a_lane_never_overlap_in_part():
    spans = [Span("record", 0.0, 1.0), Span("load", 0.5, 1.000002), Span("compile", 0.999999, 2.0)]
    _nest(spans)
    assert [(s.kind, s.start, s.end) for s in spans] == [
        ("record", 0.0, 1.0), ("load", 0.5, 1.0), ("compile", 1.0, 2.0)
    ]  # fmt: skip


@pytest.mark.slow
def test_logs_of_one_run_are_one_timeline_and_other_runs_stand_beside(traced, tmp_path):
    (log,) = files(traced, ".log")
    other = tmp_path / "before.log"
    other.write_text(LOG)
    timelines = read_timelines([other, log])
    assert [timeline.name for timeline in timelines] == ["before", log.stem]
    with pytest.raises(OSError):
        read_timelines([tmp_path / "absent"])
    assert main(["visualize", str(other), str(log), "--output", str(tmp_path / "both.json")]) == 2


@pytest.mark.slow
def test_a_renamed_log_gives_its_name_and_one_given_twice_is_read_once(traced, tmp_path):
    (log,) = files(traced, ".log")
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.log").write_text(log.read_text())
    paths = [tmp_path / name / f"{name}.log" for name in ("before", "after", "before")]
    runs = read_timelines(paths)
    assert [run.name for run in runs] == ["before", "after"]
    assert [len(run.processes) for run in runs] == [1, 1]


def test_runs_that_were_appended_to_one_log_are_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log").write_text(LOG + "\n" + LOG)
    timelines = read_timelines([tmp_path / "a" / "log", tmp_path / "b" / "log"])
    assert [timeline.name for timeline in timelines] == ["log", "log (2)", "log", "log (2)"]
    assert {len(timeline.spans) for timeline in timelines} == {6}
    assert all(timeline.end == pytest.approx(0.41) for timeline in timelines)


def test_arguments_of_a_script_are_not_taken_for_what_the_log_says_of_itself(tmp_path):
    (tmp_path / "tr_a.log").write_text(
        "  0.1s | #0001 | START    | CLIENT   | process  | pid=7 rank=0 wall=5.0 run=tr_a argv=train.py run=x pid=y\n"
        "  0.2s | #0002 | RECORD   | CLIENT   | exp      | out=%0 f32[3] thread=1 at train.py:3\n"
    )
    (timeline,) = read_timelines([tmp_path / "tr_a.log"])
    assert timeline.name == "tr_a"
    assert (timeline.processes[0].pid, timeline.processes[0].name) == (7, "train.py run=x pid=y")


# pictures


@pytest.fixture
def drawn(traced, tmp_path):
    """A function that draws the trace beside a plain log, to a file of this suffix."""

    def drawn(suffix):
        (log,) = files(traced, ".log")
        (tmp_path / "before.log").write_text(LOG)
        output = tmp_path / f"picture{suffix}"
        assert main(["visualize", str(tmp_path / "before.log"), str(log), "--output", str(output)]) == 0
        return output

    return drawn


@pytest.mark.slow
def test_a_picture_has_every_lane_kind_and_swap(drawn):
    pytest.importorskip("matplotlib")
    picture = drawn(".svg")
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    source = html.unescape(picture.read_text())  # matplotlib writes texts as comments beside their outlines
    for word in (
        "MainThread", "worker", "shard 0", "other <thread>", "run interpreted", "run compiled", "recorded: product",
        "swap abc123def456", "compile abc123def456", "before: 0.41 s", "seconds",
    ):  # fmt: skip
        assert f"<!-- {word}" in source, word


@pytest.mark.slow
def test_labels_of_a_picture_do_not_overlap(traced, tmp_path):
    figure_module = pytest.importorskip("matplotlib.figure")
    from gtrace.observe import picture

    (log,) = files(traced, ".log")
    (tmp_path / "before.log").write_text(LOG)
    figures = []

    class Figure(figure_module.Figure):
        def savefig(self, *args, **kwargs):
            figures.append(self)

    original = picture.matplotlib_module
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "matplotlib_module", lambda name: type("module", (), {"Figure": Figure})
                      if name == "figure" else original(name))  # fmt: skip
        picture.draw(read_timelines([tmp_path / "before.log", log]), "picture.png")
    (figure,) = figures
    pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg(figure).draw()
    boxes = []
    for axes in figure.axes:
        ticks = [t for t in axes.get_xticklabels() if 0 <= t.get_position()[0] <= axes.get_xlim()[1]]
        texts = [axes._left_title, axes.xaxis.label, *axes.texts, *ticks, *axes.get_yticklabels()]
        boxes += [t.get_window_extent() for t in texts if t.get_text()]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    width, height = figure.canvas.get_width_height()
    for k, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, "within the picture"
        for other in boxes[:k]:
            assert not (box.x0 < other.x1 and other.x0 < box.x1 and box.y0 < other.y1 and other.y0 < box.y1)


@pytest.mark.slow
def test_a_png_is_written(drawn):
    pytest.importorskip("matplotlib")
    assert drawn(".png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_type_of_picture_is_refused(traced, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (log,) = files(traced, ".log")
    assert main(["visualize", str(log), "--output", str(tmp_path / "picture.docx")]) == 2
    assert "expected a suffix among" in capsys.readouterr().err


def test_without_matplotlib_the_extra_is_named(traced, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (log,) = files(traced, ".log")
    assert main(["visualize", str(log), "--output", str(tmp_path / "picture.png")]) == 2
    assert "pip install 'gtrace[plot]'" in capsys.readouterr().err
    assert main(["visualize", str(log), "--output", str(tmp_path / "page.html")]) == 0


# pages


def test_a_page_asks_for_nothing_from_elsewhere(drawn):
    text = drawn(".html").read_text()
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(|https?://", text)


PROBE = """
<script>
const results = {};
const canvas = document.querySelector("canvas");
const painted = () => canvas.toDataURL();
const send = (type, x, y, more) => canvas.dispatchEvent(new MouseEvent(type, { clientX: x, clientY: y, ...more }));
const box = canvas.getBoundingClientRect();
results.canvases = document.querySelectorAll("canvas").length;
results.legend = [...document.querySelectorAll("#legend span")].map(item => item.textContent);
results.titles = [...document.querySelectorAll("h2")].map(item => item.textContent);
const span = data.runs[0].lanes[0].spans[0];
const x = box.left + panels[0].x((span.start + span.end) / 2), y = box.top + TOP + LANE / 2;
send("mousemove", x, y);
results.tip = [tip.style.display, tip.textContent];
const before = painted();
canvas.dispatchEvent(new WheelEvent("wheel", { clientX: x, clientY: y, deltaY: -100, cancelable: true }));
results.zoomed = view.end - view.start < whole && painted() !== before;
const start = view.start;
send("mousedown", x, y);
send("mousemove", x - 40, y, { buttons: 1 });
results.moved = view.start > start;
send("dblclick", x, y);
results.whole = view.start === 0 && view.end === whole && painted() === before;
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
const colours = new Set();
for (let k = 0; k < pixels.length; k += 4) {
  colours.add("#" + [0, 1, 2].map(j => pixels[k + j].toString(16).padStart(2, "0")).join(""));
}
results.colours = Object.entries(data.colours).filter(([, colour]) => colours.has(colour)).map(([kind]) => kind);
const output = document.createElement("pre");
output.id = "results";
output.textContent = JSON.stringify(results);
document.body.append(output);
</script>
</body>
"""


@pytest.mark.skipif(browser.BROWSER is None, reason="no browser")
def test_a_page_works_in_a_browser(tmp_path):
    (tmp_path / "log.log").write_text(LOG)
    (tmp_path / "other <b>.log").write_text(LOG)
    page = timeline_page(read_timelines([tmp_path / "log.log", tmp_path / "other <b>.log"]))
    (tmp_path / "page.html").write_text(page.replace("</body>", PROBE))
    results = browser.browse(tmp_path)
    assert results["canvases"] == 2
    assert results["titles"] == ["log: 410.000 ms", "other <b>: 410.000 ms"]
    assert "run compiled" in results["legend"]
    assert "recorded: product" in results["legend"]
    assert results["tip"][0] == "block"
    assert "2 operations: matmul 1, exp 1" in results["tip"][1]
    assert results["zoomed"] and results["moved"] and results["whole"]
    assert set(results["colours"]) >= {"run interpreted", "run compiled", "compile"}


def test_names_in_a_page_cannot_end_its_script(tmp_path):
    log = tmp_path / "log.log"
    log.write_text(LOG.replace("my script.py", "</script><script>alert(1)//"))
    page = timeline_page(read_timelines([log]))
    assert page.count("</script>") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["runs"][0]["lanes"][2]["spans"][0]["line"] == "</script><script>alert(1)//:31"
    assert set(data["operationColours"]) == set(OPERATIONS)
    assert set(data["colours"]) == set(SPANS)


def test_the_chrome_trace_of_a_plain_log_is_well_formed(tmp_path):
    (tmp_path / "log.log").write_text(LOG)
    check_format(json.loads(json.dumps(chrome_trace(read_timelines([tmp_path / "log.log"])[0]))))


def test_nothing_listens_when_no_trace_is_on(tmp_path):
    wanted = gt.core.base.events.bus.wanted
    with gt.config(trace=str(tmp_path / "trace")):
        assert wanted < gt.core.base.events.bus.wanted
        float(gt.ones(3).sum())
    assert gt.core.base.events.bus.wanted == wanted
    assert (tmp_path / "trace.log").exists()
    before = (tmp_path / "trace.log").stat().st_size
    float(gt.ones(3).sum())
    assert (tmp_path / "trace.log").stat().st_size == before
