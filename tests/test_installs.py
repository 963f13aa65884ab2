"""Machines that lack something: a compiler, what only POSIX has, rights, an entry in passwd."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

import gtrace as gt
from gtrace.core.runtime.cache.folder import write

PROGRAM = """
    import pathlib, sys, tempfile
    import gtrace as gt

    def loss(w, x):
        return (gt.tanh(x @ w) ** 2).sum()

    x, w = gt.linspace(-1, 1, 12).reshape(3, 4), gt.ones((4, 2))
    step = gt.jit(lambda w, x: w - 0.1 * gt.grad(loss)(w, x))
    long = gt.jit(lambda x: gt.sort(x, axis=0).sum() + gt.linalg.svd(x)[1].sum())
    for _ in range(4):
        w = step(w, x)
        total = float(long(x))
        plain = float((gt.sinh(x) * 2 + gt.cosh(x)).sum())
    folder = pathlib.Path(tempfile.mkdtemp())
    gt.save_arrays(folder / "arrays.npz", {"w": w})
    gt.save_arrays(folder / "arrays.safetensors", {"w": w})
    gt.save_checkpoint(folder / "checkpoint", {"w": w}, step=1)
    loaded = [gt.load_arrays(folder / name)["w"] for name in ("arrays.npz", "arrays.safetensors")]
    loaded.append(gt.load_checkpoint(folder / "checkpoint")[0]["w"])
    assert all(bool((other == w).all()) for other in loaded)
    print(f"{float(loss(w, x)):.4f} {total:.4f} {plain:.4f}", *(p.tier for f in (step, long) for p in f.programs()))
"""

POSIX_ALONE = """
    import importlib.abc, os, select, signal, socket, sys
    # libraries of others know their systems
    import asyncio, concurrent.futures, logging, multiprocessing, platform, selectors, shutil, subprocess, tempfile
    import filelock, numpy, optree, platformdirs, rich.console, rich.progress, safetensors, torch, yaml

    class Missing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name in MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    MODULES = "fcntl grp pty pwd resource syslog termios tty".split()
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing())
    LACKING = {
        os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK PRIO_PGRP PRIO_PROCESS chown fchmod fchown fork forkpty"
            " getegid geteuid getgid getgroups getloadavg getpgid getpriority getsid getuid killpg lchown mkfifo nice"
            " posix_spawn register_at_fork sched_getaffinity sched_setaffinity setpgid setpriority setsid setuid"
            " sysconf uname wait wait3 wait4 waitid",
        signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH"
                " pthread_kill pthread_sigmask setitimer siginterrupt sigwait",
        socket: "AF_UNIX recv_fds send_fds",
        select: "epoll poll",
    }
    for module, names in LACKING.items():
        for name in names.split():
            vars(module).pop(name, None)

    os_open, fsync, written = os.open, os.fsync, set()

    def open_file(path, flags, mode=0o777, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)  # Windows opens no folders
        handle = os_open(path, flags, mode, **options)
        (written.add if flags & (os.O_RDWR | os.O_WRONLY) else written.discard)(handle)
        return handle

    def sync(file):
        handle = file if isinstance(file, int) else file.fileno()
        if handle not in written:
            raise OSError(9, "Bad file descriptor")  # as on Windows, for a file that is only read
        fsync(handle)

    os.open, os.fsync = open_file, sync
"""


def run(code, tmp_path, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {"GT_COMPILE_AFTER": "0"}
    environment |= {"GT_CACHE_DIR": str(tmp_path / "programs"), "TMPDIR": str(tmp_path), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)


def warned(done):
    return [line for line in done.stderr.splitlines() if "Warning: " in line]


@pytest.fixture(scope="module")
def expected():
    """The numbers of the program, interpreted."""
    x, w = gt.linspace(-1, 1, 12).reshape(3, 4), gt.ones((4, 2))

    def loss(w, x):
        return (gt.tanh(x @ w) ** 2).sum()

    for _ in range(4):
        w = w - 0.1 * gt.grad(loss)(w, x)
    total = gt.sort(x, axis=0).sum() + gt.linalg.svd(x)[1].sum()
    numbers = loss(w, x), total, (gt.sinh(x) * 2 + gt.cosh(x)).sum()
    return [f"{float(number):.4f}" for number in numbers]


MACHINES = {
    "no compiler": ("", {"PATH": "/nonexistent"}, "there is no g++"),
    "no compiler, and no worker": ("", {"PATH": "/nonexistent", "GT_BACKGROUND": "0"}, "there is no g++"),
    "no compiler, and all is hot": ("", {"PATH": "/nonexistent", "GT_COMPILE": "1"}, "there is no g++"),
    "no compiler, and no native code": ("", {"PATH": "/nonexistent", "GT_NATIVE": "0"}, "there is no g++"),
    "a wrong CXX": ("", {"CXX": "/nonexistent/c++", "PATH": ""}, "there is no /nonexistent/c++"),
    "nothing of POSIX": (POSIX_ALONE, {}, "this system has none"),
}


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_what_cannot_compile_interprets_after_one_warning(machine, tmp_path, expected):
    before, variables, words = MACHINES[machine]
    done = run(textwrap.dedent(before) + textwrap.dedent(PROGRAM), tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    *numbers, one, two = done.stdout.split()
    assert numbers == expected and (one, two) == ("interpreted", "interpreted")
    (warning,) = warned(done)
    assert words in warning and warning.endswith("Everything is interpreted.")


@pytest.mark.slow
def test_warming_up_without_a_compiler_says_so(tmp_path):
    (tmp_path / "script.py").write_text("import gtrace as gt\nfor _ in range(12): float((gt.ones(9) * 2).sum() + 1)\n")
    code = "import sys; from gtrace.commands.cli import main; sys.exit(main(['warmup', 'script.py']))"
    done = run(code, tmp_path, PATH="/nonexistent")
    assert done.returncode == 1 and "0 compiled, 0 found compiled, 1 failed" in done.stderr, done.stderr
    assert len(warned(done)) == 1


@pytest.mark.slow
def test_a_compiler_that_does_not_work_costs_one_warning_for_all_programs(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho \"c++: fatal error: cannot execute 'cc1plus'\" >&2\nexit 1\n")
    compiler.chmod(0o755)
    code = """
        import gtrace as gt
        for factor in range(3):
            f = gt.jit(lambda x: (gt.sinh(x) * factor + gt.cosh(x)).sum(), wait=True)
            print(f"{float(f(gt.ones(5))):.2f}")
    """
    done = run(textwrap.dedent(code), tmp_path, CXX=str(compiler))
    assert (done.returncode, len(warned(done))) == (0, 1), done.stderr
    assert done.stdout.split() == ["7.72", "13.59", "19.47"]


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o755, 0o644), (0o750, 0o640)])
def test_who_can_read_the_folder_of_programs_can_read_the_programs(tmp_path, folder, file):
    tmp_path.chmod(folder)
    write(tmp_path / "gtrace-lock", b"content")
    assert (tmp_path / "gtrace-lock").stat().st_mode & 0o777 == file
