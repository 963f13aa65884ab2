"""``gtrace top``: a program's socket, who may open it, and the screen."""

import contextlib
import io
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

import gtrace as gt
from gtrace.commands.cli import main
from gtrace.commands.top import ask, screen
from gtrace.observe import status


@pytest.fixture
def runtime(tmp_path_factory, monkeypatch):
    """The folder that has the user's sockets; programs of others in /tmp are not seen."""
    # a change of XDG_RUNTIME_DIR would keep the processes of these tests from being forks
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("TMPDIR", str(folder))
    every = status.folders
    monkeypatch.setattr("gtrace.commands.top.folders", lambda: every()[:1])
    return folder / f"gtrace-{os.getuid()}"


@pytest.fixture
def watched(runtime):
    with gt.config(status=True):
        yield runtime / f"{os.getpid()}.sock"


SCRIPT = """
import sys, gtrace as gt
x = gt.ones((8, 8))
float((gt.exp(x @ x) * 3).sum())
print("ready", flush=True)
sys.stdin.readline()
"""


QUICK = ["--interval", "0.01"]


@contextlib.contextmanager
def program(launcher=("-c", SCRIPT), **environment):
    env = os.environ | {"GT_STATUS": "1", "GT_AUTO_COMPILE": "0"} | environment
    process = subprocess.Popen(
        [sys.executable, *launcher], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "ready\n"
        yield process
        if process.poll() is None:
            process.stdin.write("\n")
            process.stdin.close()


def test_a_program_tells_what_it_does(watched):
    float((gt.arctan(gt.ones(31)) * 2).sum())
    told = ask(watched)
    assert told["pid"] == os.getpid()
    assert told["calls"] >= 1 and told["count"] >= len(told["programs"])
    assert told["memory"] > 2**20
    seconds = [row["seconds"] for row in told["programs"]]
    assert seconds == sorted(seconds, reverse=True)
    assert len(seconds) <= status.SHOWN


def test_only_its_owner_can_open_it(watched):
    assert stat.S_IMODE(watched.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(watched.stat().st_mode)
    assert stat.S_IMODE(watched.parent.stat().st_mode) == 0o700


def test_a_folder_that_others_can_enter_is_refused(runtime):
    runtime.mkdir(mode=0o755)
    runtime.chmod(0o755)
    with pytest.warns(gt.ConfigWarning, match="cannot watch this program: .* not a folder of this user's alone"):
        with gt.config(status=True):
            pass
    assert list(runtime.iterdir()) == []


def waiting():
    return [thread for thread in threading.enumerate() if thread.name == "gtrace status"]


def test_nothing_is_there_when_it_is_off(runtime):
    wanted = gt.core.base.events.bus.wanted
    with gt.config(status=True):
        assert list(runtime.iterdir())
        assert waiting()
        assert gt.core.base.events.bus.wanted == wanted, "no event is looked at, on or off"
    assert list(runtime.iterdir()) == []
    for _ in range(100):
        if not waiting():
            break
        time.sleep(0.01)
    assert not waiting()


@pytest.mark.slow
def test_top_shows_a_program_once_where_there_is_no_terminal(runtime, capsys):
    with program() as process:
        assert main(["top", *QUICK]) == 0
        shown = capsys.readouterr().out
        assert f"(process {process.pid})" in shown
        assert "1 programs" in shown or "programs, " in shown
        row = next(line for line in shown.splitlines() if "matmul" in line)
        assert row.split()[1] == "interpreted"
        assert "matmul exp mul sum" in " ".join(row.split())
        assert main(["top", "--pid", str(process.pid), *QUICK]) == 0
    assert list(runtime.iterdir()) == [], "the socket is removed at the end"


@pytest.mark.slow
def test_the_newest_of_several_programs_is_shown(runtime, capsys):
    with program():
        time.sleep(0.05)
        with program() as newest:
            assert main(["top", "--once", *QUICK]) == 0
            assert f"(process {newest.pid})" in capsys.readouterr().out


@pytest.mark.slow
def test_gtrace_run_can_be_watched(runtime, tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)
    script = str(tmp_path / "train.py")
    environment = {"GT_STATUS": ""}
    with program(("-m", "gtrace", "run", "--quiet", script, "--lr", "1"), **environment):
        assert main(["top", *QUICK]) == 0
        assert f"{script} --lr 1  (process " in capsys.readouterr().out
    with program(("-m", "gtrace", "run", "--quiet", script), GT_STATUS="0"):
        assert main(["top"]) == 2


@pytest.mark.slow
def test_a_killed_program_is_recognised_and_its_socket_removed(runtime, capsys):
    with program() as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (runtime / f"{process.pid}.sock").exists()
    assert main(["top"]) == 2
    assert "expected a running program, got none" in capsys.readouterr().err
    assert list(runtime.iterdir()) == []


def test_without_a_program_top_says_how_to_start_one(runtime, capsys):
    assert main(["top"]) == 2
    assert "expected a running program, got none. Start it with gtrace run" in capsys.readouterr().err
    assert main(["top", "--pid", str(os.getpid())]) == 2
    assert f"process {os.getpid()}, got one that cannot be watched. Start it with gtrace" in capsys.readouterr().err
    assert main(["top", "--pid", str(2**22 + 1)]) == 2
    assert "got none: there is no such process" in capsys.readouterr().err


def test_a_process_of_another_user_is_named_as_such(runtime, capsys, monkeypatch):
    def refused(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert main(["top", "--pid", "1"]) == 2
    assert "process 1, got one of another user, who alone can watch it." in capsys.readouterr().err


@pytest.mark.parametrize("pid", ["0", "-5", "x", "²"])
def test_what_is_no_number_of_a_process_is_refused(pid, capsys):
    with pytest.raises(SystemExit):
        main(["top", "--pid", pid])
    assert "expected the number of a process" in capsys.readouterr().err


def test_other_files_in_the_folder_are_left_alone(watched, capsys):
    (watched.parent / "other.sock").write_text("")
    (watched.parent / "7.sock").write_text("")
    assert main(["top", "--interval", "0.01"]) == 0
    assert (watched.parent / "other.sock").exists() and not (watched.parent / "7.sock").exists()


def test_a_program_that_does_not_answer_has_not_ended(runtime, capsys, monkeypatch):
    monkeypatch.setattr("gtrace.commands.top.PATIENCE", 0.05)
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(runtime / "7.sock"))
        listening.listen()
        assert main(["top", "--pid", "7"]) == 1
    assert "process 7 does not answer within" in capsys.readouterr().err


def test_a_runtime_folder_that_is_not_there_is_not_used(runtime, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime.parent / "run" / "user" / "9"))
    assert status.folder() == runtime
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime.parent))
    assert status.folder() == runtime.parent / "gtrace"
    assert runtime in status.folders(), "a program without that variable is found too"


def test_arguments_of_a_program_that_are_no_text_are_shown(watched, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [pathlib.Path("train.py"), "\udcff", "[bold]"])
    assert main(["top", "--interval", "0.01"]) == 0
    assert capsys.readouterr().out.startswith("train.py ? [bold]  (process ")


def test_control_characters_of_arguments_do_not_reach_the_terminal(watched, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "\x1b]0;a title\x07\x1b[2J\x9b1m\r\n\u202e.csv"])
    assert main(["top", "--interval", "0.01"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(r"train.py \x1b]0;a title\x07\x1b[2J\x9b1m\r\n\u202e.csv  (process ")
    assert shown.replace("\n", "").isprintable()


@pytest.mark.slow
def test_a_forked_process_leaves_the_socket_to_its_parent(runtime):
    script = """
import os, sys, gtrace as gt
float(gt.ones(3).sum())
child = os.fork()
if not child:
    float(gt.ones(3).sum())
    sys.exit(0)  # with the exit handlers
os.waitpid(child, 0)
print("ready", flush=True)
sys.stdin.readline()
"""
    with program(("-c", script)) as process:
        assert [path.stem for path in runtime.iterdir()] == [str(process.pid)]
        assert ask(runtime / f"{process.pid}.sock")["pid"] == process.pid


def test_whoever_asks_without_end_is_answered_slowly(watched, monkeypatch):
    asked = []
    monkeypatch.setattr(status, "status", lambda: asked.append(1) or {"pid": 1})
    monkeypatch.setattr(status.time, "sleep", lambda seconds: asked.append(seconds))
    for _ in range(3):
        assert ask(watched) == {"pid": 1}
    for _ in range(100):
        if len(asked) == 6:
            break
        threading.Event().wait(0.01)
    assert asked == [1, status.PAUSE] * 3


def test_someone_who_leaves_early_does_no_harm(watched):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(watched))
    assert ask(watched)["pid"] == os.getpid()


ROW = {"signature": "ab" * 16, "ops": 4, "names": ["exp"], "tier": "compiled", "calls": 30, "seconds": 0.06,
       "compiling": False, "verdict": ""}  # fmt: skip
TOLD = {"pid": 7, "command": ["train.py", "[x]"], "rank": 0, "at": 10.0, "programs": [ROW], "count": 1, "calls": 30,
        "compiles": 2, "loaded": 1, "pending": 3, "worker": "paused, process 9", "memory": 5 * 2**30, "gpu": None,
        "store": "/cache"}  # fmt: skip


def test_the_screen():
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(screen({**TOLD, "at": 12.0, "calls": 50, "programs": [{**ROW, "calls": 50}]}, TOLD))
    text = console.file.getvalue()
    assert "train.py [x]  (process 7)" in text
    assert "1 programs, 50 calls, 10 calls/s, memory 5.0 GiB" in text
    assert "worker: paused, process 9, 3 to compile;  store: 1 found;  2 compiled" in text
    row = " ".join(text.splitlines()[-1].split())
    assert row == "abababababab compiled 4 50 10 60.0 ms 1.20 ms exp"


@pytest.mark.parametrize("width", [20, 30, 40, 50, 60, 100])
def test_a_narrow_screen_shows_whole_numbers_or_none(width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    row = {**ROW, "tier": "interpreted", "calls": 1234567}
    console.print(screen({**TOLD, "at": 12.0, "programs": [row]}, TOLD))
    line = console.file.getvalue().splitlines()[-1]
    assert "interpreted" in line
    assert "1234567" in line
    assert "…" not in line
    assert len(line) <= width


def test_a_narrow_screen_shortens_the_operations_and_no_number():
    console = Console(file=io.StringIO(), width=70, color_system=None)
    row = {**ROW, "calls": 1234567, "seconds": 123.4, "names": ["matmul", "softmax", "logsumexp", "gelu"]}
    console.print(screen({**TOLD, "at": 12.0, "programs": [row]}, TOLD))
    (line,) = [line for line in console.file.getvalue().splitlines() if line.startswith("abab")]
    assert line.split()[:7] == ["abababababab", "compiled", "4", "1234567", "617268", "123.4", "s"]
    assert line.rstrip().endswith("…")
