"""Processes for tests that need not import torch again: a process that has imported it is forked for each.

`Popen` is `subprocess.Popen`, but that commands of this Python (``-c CODE``, ``-m MODULE`` or a script, after ``-P``,
``-W`` and ``-u``) are answered by a fork. It has the arguments, environment, folder, streams and process group of the
command, runs the code as ``__main__`` and ends as Python does. When its code begins, torch and its compiler are
imported, and gtrace is not. It is not a child of the process that asked for it, and its strings have the hashes of the
process that forked.

A command whose environment differs in what is read while Python starts or torch is imported gets a process from
scratch, and so does every command inside `from_scratch`, for tests of what is imported.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings

PRELOADED = (
    "setuptools", "torch", "optree", "attrs", "yaml", "rich.progress", "torch.fx.experimental.proxy_tensor",
    "torch._inductor.compile_fx", "torch._inductor.codegen.cpp", "torch._inductor.codegen.cpp_wrapper_cpu",
)  # fmt: skip
READ_WHEN_IMPORTED = ("CC", "HOME", "KMP_", "LD_", "MKL_", "OMP_", "PYTHON", "TORCH", "USER", "XDG_")
READ_LATER = (
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",  # set by scikit-learn, for another OpenMP than torch's
    "PYTHONPATH", "PYTHONWARNINGS", "TORCHELASTIC_", "TORCHINDUCTOR_CACHE_DIR", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "TORCH_NCCL_",
)  # fmt: skip
ORIGINAL = subprocess.Popen


def read_when_imported(environment):
    names = [name for name in environment if name.startswith(READ_WHEN_IMPORTED) and not name.startswith(READ_LATER)]
    return {name: environment[name] for name in names}


ENVIRONMENT = read_when_imported(os.environ)


def install() -> None:
    """Make `subprocess` start processes of this Python by forks, in this process and in those."""
    subprocess.Popen = Popen


@contextlib.contextmanager
def from_scratch():
    """Start processes from scratch, as `subprocess` does."""
    installed, subprocess.Popen = subprocess.Popen, ORIGINAL
    try:
        yield
    finally:
        subprocess.Popen = installed


class Popen(ORIGINAL):
    _status: socket.socket | None = None
    """Tells the number of the process, and later how it ended."""

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
    ):  # fmt: skip
        *_, session, group = rest
        command = None if shell or executable or preexec_fn or pass_fds else parse(args)
        environment = dict(os.environ if env is None else env)
        folders = environment.get("PYTHONPATH", "").split(os.pathsep)
        customized = any(os.path.exists(os.path.join(folder, "sitecustomize.py")) for folder in folders if folder)
        if command is None or read_when_imported(environment) != ENVIRONMENT or customized:
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
            )  # fmt: skip
            return
        command |= {"cwd": os.path.abspath(cwd or "."), "environment": environment, "session": session, "group": group}
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self._status = socket.socket(socket.AF_UNIX)
        self._status.connect(server())
        request = json.dumps(command).encode()
        socket.send_fds(self._status, [len(request).to_bytes(8, "little")], streams)
        self._status.sendall(request)
        self.pid = int.from_bytes(receive(self._status, 8), "little")
        self._child_created = True
        for theirs, ours in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)):
            if ours != -1 and theirs != -1:
                os.close(theirs)
        if getattr(self, "_devnull", None) is not None:
            os.close(self._devnull)
        self._closed_child_pipe_fds = True

    def _internal_poll(self, *args, **kwargs):
        if self._status is None:
            return super()._internal_poll(*args, **kwargs)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout):
        if self._status is None:
            return super()._wait(timeout)
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            with self._waitpid_lock:
                if self.returncode is None:
                    self.returncode = int.from_bytes(receive(self._status, 8), "little", signed=True)
                    self._status.close()
        return self.returncode


def parse(args):
    """Return what a command of this Python runs, or None if it is of another kind."""
    if isinstance(args, (str, bytes, os.PathLike)) or not args or args[0] != sys.executable:
        return None
    rest, options, safe, unbuffered = [os.fspath(arg) for arg in args[1:]], [], False, False
    while rest:
        option = rest.pop(0)
        if option == "-P":
            safe = True
        elif option == "-u":
            unbuffered = True
        elif option == "-W":
            options.append(rest.pop(0))
        elif option in ("-c", "-m") or not option.startswith("-"):
            what = rest.pop(0) if option.startswith("-") else option
            kind = option if option.startswith("-") else "script"
            run = {"kind": kind, "what": what, "arguments": rest}
            return run | {"safe": safe, "unbuffered": unbuffered, "warnings": options}
        else:
            return None
    return None


def receive(connection, count):
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError("the process that forks has ended")
        received += part
    return received


@functools.cache
def server():
    """Return the address of the process that forks, which is started when first needed and ends with this one."""
    if "TESTS_FORK_SERVER" in os.environ:
        return os.environ["TESTS_FORK_SERVER"]
    address = os.path.join(tempfile.mkdtemp(), "socket")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = ORIGINAL(
        [sys.executable, __file__, address], stdin=-1, stdout=-1, process_group=0, env=environment
    )  # fmt: skip
    process.stdout.readline()
    server.process = process  # its input ends when this process does
    return address


# -- the process that forks


def serve(address):
    """Fork for each request. Returns, in the new process, what it is to run."""
    del sys.path[0]  # the folder of this file
    for name in PRELOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    wakeup, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    gc.freeze()
    os.environ["TESTS_FORK_SERVER"] = address
    print("ready", flush=True)
    running = {}
    while True:
        ready, _, _ = select.select([listener, wakeup, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        if wakeup in ready:
            wakeup.recv(4096)
            report(running)
        if listener in ready:
            connection, _ = listener.accept()
            size, streams, _, _ = socket.recv_fds(connection, 8, 3)
            request = json.loads(receive(connection, int.from_bytes(size, "little")))
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for opened in (listener, wakeup, wake, connection, *running.values()):
                    opened.close()
                return request, streams
            for fd in streams:
                os.close(fd)
            running[pid] = connection
            connection.sendall(pid.to_bytes(8, "little"))


def report(running):
    """Say how the processes ended that have."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(OSError), running.pop(pid) as connection:
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "little", signed=True))


def become(request, streams):
    """Take the properties of the process that was asked for."""
    if request["session"]:
        os.setsid()
    elif request["group"] is not None and request["group"] >= 0:
        os.setpgid(0, request["group"])
    for own, given in enumerate(streams):
        os.dup2(given, own)
        os.close(given)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stdout.reconfigure(write_through=request["unbuffered"])
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(request["cwd"])
    environment = request["environment"] | {"TESTS_FORK_SERVER": os.environ["TESTS_FORK_SERVER"]}
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if "CXX" in environment:
        sys.modules["torch._inductor.config"].cpp.cxx = (None, environment["CXX"])  # as when it is imported
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for option in [*environment.get("PYTHONWARNINGS", "").split(","), *request["warnings"]]:
        if option:
            action, _, category = option.partition("::")
            warnings.simplefilter(action, getattr(builtins, category or "Warning"))
            sys.warnoptions.append(option)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if not request["safe"]:
        first = {"-c": "", "-m": os.getcwd()}.get(request["kind"], os.path.dirname(os.path.abspath(request["what"])))
        paths.insert(0, first)
    sys.path[:0] = paths
    first = {"-c": "-c", "-m": "-m"}.get(request["kind"], request["what"])
    sys.argv = [first, *request["arguments"]]
    sys.excepthook = without_frames_of_this_file
    install()


def without_frames_of_this_file(kind, error, traceback):
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def execute(request):
    """Run what was asked for as the main module."""
    if request["kind"] == "-m":
        runpy.run_module(request["what"], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    code, name = request["what"], "<string>"
    if request["kind"] == "script":
        main.__file__ = name = request["what"]
        with open(name) as file:
            code = file.read()
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec"), main.__dict__)


if __name__ == "__main__":
    request, streams = serve(sys.argv[1])
    become(request, streams)
    execute(request)
