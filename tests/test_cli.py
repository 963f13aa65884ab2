"""``gtrace run``: as ``python SCRIPT`` would, with a table at the end."""

import os
import pty
import subprocess
import sys
import textwrap
import threading

import launch
import pytest

import gtrace as gt
from gtrace.commands.cli import main

SCRIPT = """\
import sys
import gtrace as gt
total = float((gt.arange(4.0) * 2 + 1).sum())
print(total, sys.argv, __name__)
"""


@pytest.fixture
def script(tmp_path):
    def script(text=SCRIPT, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return script


def run(*args, launcher=("-m", "gtrace", "run"), env=None, **kwargs):
    env = os.environ | {"GT_AUTO_COMPILE": "0", "COLUMNS": "80"} | (env or {})
    return subprocess.run([sys.executable, *launcher, *args], env=env, capture_output=True, text=True, **kwargs)


@pytest.mark.slow
def test_a_script_runs_and_ends_with_the_table(script):
    path = script()
    done = run(path, "--lr", "0.1", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    first, *table = done.stdout.splitlines()
    assert first == f"16.0 {[path, '--lr', '0.1', '--quiet']} __main__", "what follows SCRIPT is the script's"
    for heading in ("signature", "ops", "calls", "tier", "interpreted", "compiled", "compiling", "saved", "verdict"):
        assert heading in table[1]
    row = [cell.strip() for cell in table[3].split("│")]
    assert row[2:5] == ["4", "1", "interpreted"]
    assert row[9] == "not compiled: automatic compilation is off"
    assert table[-1] == "1 program, 1 call, 0 compiles"
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_quiet_prints_nothing_of_its_own(script):
    done = run("--quiet", script())
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_a_script_without_arrays_ends_with_a_line(script):
    done = run(script("print('hello')"))
    assert done.stdout == "hello\ngtrace: no program ran\n"


@pytest.mark.slow
def test_output_that_is_no_terminal_is_plain_whatever_the_environment(script):
    done = run(script(), env={"PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "verdict" in done.stdout
    assert "\x1b" not in done.stdout


WORLD = """\
import os, sys, pickle
from helper import VALUE
class Point:
    pass
assert type(pickle.loads(pickle.dumps(Point()))) is Point
print(VALUE, sys.argv, os.getcwd(), sys.path[0], __file__, __spec__, __package__, __doc__, __cached__)
print(sys.modules["__main__"].__dict__ is globals(), __builtins__)
import inspect
print(inspect.getsource(Point))
"""


@pytest.mark.slow
@pytest.mark.parametrize("through_link", [False, True])
def test_a_script_sees_the_world_as_under_python(script, tmp_path, through_link):
    path = script(WORLD, "inner/script.py")
    script("VALUE = 42", "inner/helper.py")
    if through_link:
        os.symlink(path, tmp_path / "link.py")
        path = "link.py"
    with launch.from_scratch():
        expected = run(path, "a", "-b", launcher=(), cwd=tmp_path)
        done = run("--quiet", path, "a", "-b", cwd=tmp_path)
    assert expected.returncode == 0
    assert (done.stdout, done.stderr, done.returncode) == (expected.stdout, expected.stderr, 0)


ENDINGS = {
    "an exception": "def f():\n    1 / 0\nf()",
    "a chained exception": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "an exit code": "import sys; sys.exit(3)",
    "an exit message": "import sys; sys.exit('enough')",
    "a syntax error": "x = (1,\ny 2",
    "its own hook": "import sys; sys.excepthook = lambda *a: print('hook', a[0]); raise KeyError",
    "ctrl-c": "def f():\n    raise KeyboardInterrupt\nf()",
    "a late thread": "import threading, time\nt = threading.Timer(0.2, lambda: print('late')); t.start()",
}


LONG = {"a chained exception", "its own hook", "an exit message"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in ENDINGS]
)
def test_however_a_script_ends_its_exit_code_and_messages_are_kept(script, ending):
    path = script(ENDINGS[ending])
    with launch.from_scratch():
        expected = run(path, launcher=())
    done = run(path)
    assert done.returncode == expected.returncode
    assert done.stderr == expected.stderr
    assert done.stdout == expected.stdout + "gtrace: no program ran\n"


PACKAGE = """\
from .helper import VALUE
import pickle, sys
class Point:
    pass
assert type(pickle.loads(pickle.dumps(Point()))) is Point
print(VALUE, sys.argv, __name__, __package__, __spec__.name, __file__, sys.path[0] in ("", sys.argv[-1]))
raise ValueError("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pkg.train", pytest.param("pkg", marks=pytest.mark.long)])
def test_a_module_is_run_as_by_python_m(script, tmp_path, name):
    script("VALUE = 42", "pkg/helper.py")
    script("", "pkg/__init__.py")
    script(PACKAGE, "pkg/train.py" if name == "pkg.train" else "pkg/__main__.py")
    expected = run(name, "-m", str(tmp_path), launcher=("-m",), cwd=tmp_path)
    done = run("--quiet", "-m", name, "-m", str(tmp_path), cwd=tmp_path)
    assert expected.returncode == done.returncode == 1
    assert done.stdout == expected.stdout
    assert done.stderr.splitlines()[-2:] == expected.stderr.splitlines()[-2:]
    assert "gtrace" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("json", "a package without a file __main__"),
        pytest.param("absent", "the name of a Python module after -m, got 'absent'", marks=pytest.mark.long),
    ],
)
def test_a_module_that_cannot_be_run_is_an_error(name, words, tmp_path):
    done = run("--quiet", "-m", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.slow
def test_a_reader_that_leaves_and_closed_streams_are_no_errors(script):
    path = script()
    code = f"import sys; from gtrace.commands.cli import main; sys.std{{}} = None; sys.exit(main(['run', {path!r}]))"
    assert run("-c", code.format("err"), launcher=()).stdout.splitlines()[-1] == "1 program, 1 call, 0 compiles"
    done = run("-c", code.format("out"), launcher=())
    assert (done.returncode, done.stderr) == (0, "")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "gtrace", "run", script("import gtrace as gt; float(gt.ones(2).sum())")]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_table_comes_after_the_exit_handlers_and_counts_what_they_ran(script):
    done = run(script("import atexit, gtrace as gt\natexit.register(lambda: print(float(gt.ones(2).sum())))"))
    lines = done.stdout.splitlines()
    assert lines[0] == "2.0"
    assert lines[-1] == "1 program, 1 call, 0 compiles"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "absent.py"], "expected the path of a Python script, got 'absent.py': No such file or directory"),
        (["run", "."], "expected the path of a Python script, got '.': Is a directory"),
    ],
)
def test_a_missing_script_is_an_error(args, words, capsys, monkeypatch):
    before = sys.argv
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""
    assert sys.argv is before


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "required: command"),
        (["run"], 2, "required: SCRIPT"),
        (["run", "--fast", "x.py"], 2, "unrecognized arguments: --fast"),
        (["walk", "x.py"], 2, "invalid choice: 'walk'"),
        (["run", "--workers", "-3", "x.py"], 2, "--workers: expected an integer of at least 1, got '-3'"),
        (["run", "--restarts", "-1", "x.py"], 2, "--restarts: expected an integer of at least 0, got '-1'"),
        (["trace", "--workers", "two", "x.py"], 2, "--workers: expected an integer of at least 1, got 'two'"),
        (["trace", "--seconds", "soon", "x.py"], 2, "--seconds: expected a positive number, got 'soon'"),
        (["warmup", "--threshold", "0", "x.py"], 2, "--threshold: expected an integer of at least 1, got '0'"),
    ],
)
def test_a_wrong_command_line_is_explained(args, code, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plan", "--check", "signals.yaml", "--html", "x.html"], "expected no --html beside --check, got 'x.html'"),
        (["plan", "--check", "signals.yaml", "x.py"], "expected no SCRIPT beside --check, got 'x.py'"),
    ],
)
def test_options_that_would_be_ignored_are_an_error(args, words, capsys):
    assert main(args) == 2
    assert words in capsys.readouterr().err


def test_version_and_help(capsys):
    for args, words in ((["--version"], gt.__version__), (["run", "--help"], "everything after it goes to the script")):
        with pytest.raises(SystemExit) as caught:
            main(args)
        assert caught.value.code == 0
        assert words in " ".join(capsys.readouterr().out.split())


def on_terminal(*args, env):
    """Run with a terminal as stdout and stderr; returns the exit code and what it showed."""
    ours, theirs = pty.openpty()
    shown = []

    def read():
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # Linux's way to say that the other end is closed
                return
            shown.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(
        [sys.executable, "-m", "gtrace", "run", *args],
        env={k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | env,
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
    )
    os.close(theirs)
    reader.join()
    os.close(ours)
    return done.returncode, b"".join(shown).decode()


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_shows_progress_and_colour_unless_quiet(script, quiet):
    env = {"GT_COMPILE": "1", "TERM": "xterm-256color"}
    code, shown = on_terminal(*(["--quiet"] if quiet else []), script(), env=env)
    assert code == 0
    assert "16.0" in shown
    assert ("compiling " in shown and "(4 ops)" in shown) is not quiet
    assert ("\x1b[" in shown) is not quiet
    assert ("1 compile" in shown) is not quiet


WAITS = """
    import time
    import gtrace as gt
    from gtrace.core.base.events import Awaiting, bus
    from gtrace.observe import progress

    progress.SHOW_AFTER = 0.05
    bus.emit(Awaiting(1, 7))
    time.sleep(0.5)
    bus.emit(Awaiting(2, 7))
    bus.emit(Awaiting(7, 7, over=True))
    print("quick")
    progress.SHOW_AFTER = 5.0
    bus.emit(Awaiting(1, 9))
    bus.emit(Awaiting(9, 9, over=True))
"""


@pytest.mark.slow
def test_a_terminal_shows_how_much_is_done_of_what_is_waited_for(tmp_path):
    path = tmp_path / "waits.py"
    path.write_text(textwrap.dedent(WAITS))
    code, shown = on_terminal("--quiet", str(path), env={"TERM": "xterm-256color"})
    assert code == 0
    assert "quick" in shown
    assert "1 of 7 programs done" in shown and "of 9 programs" not in shown
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("quick\n", "")
