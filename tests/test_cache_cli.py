"""``gtrace cache``, ``doctor`` and ``warmup``, as a user runs them; ``cache`` without a process where it needs none."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile

import attrs
import pytest
import torch

import gtrace as gt
from gtrace.commands import doctor, machine_facts
from gtrace.commands.cli import main
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.cache.manifest import Manifest, Verdict, VerdictKind
from gtrace.core.runtime.cache.store import Store

pytestmark = pytest.mark.inductor

SCRIPT = """
    import sys
    import gtrace as gt
    x = gt.eval(gt.linspace(-1, 1, 50))
    for _ in range(15):
        total = float((gt.sinh(x) * 2 + gt.cosh(x)).sum())
    print(round(total, 3), sys.argv[1:])
"""


def gtrace(cache, *args, **settings):
    args = [str(arg) for arg in args]
    if args[0] == "cache" and not settings:
        with gt.config(background=True, cache_dir=str(cache)), contextlib.redirect_stdout(io.StringIO()) as out:
            with contextlib.redirect_stderr(io.StringIO()) as err:
                try:
                    code = main(args)
                except SystemExit as error:
                    code = error.code
        return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {"GT_COMPILE_AFTER": "0"}
    threads = str(torch.get_num_threads())  # code is compiled for a number of threads
    env |= {
        "GT_CACHE_DIR": str(cache),
        "GT_COMPILE_SHARE": "1",
        "GT_NATIVE": "0",
        "COLUMNS": "200",
        "OMP_NUM_THREADS": threads,
        **settings,
    }
    return subprocess.run([sys.executable, "-m", "gtrace", *args], env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


@pytest.fixture(scope="module")
def cache(script, tmp_path_factory):
    """A store that `gtrace warmup` filled."""
    folder = tmp_path_factory.mktemp("cache") / "programs"
    done = gtrace(folder, "warmup", script, "an", "--argument")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("59.136") and "['an', '--argument']" in done.stdout
    assert f"1 compiled, 0 found compiled: {folder}" in done.stderr
    return folder


@pytest.fixture
def signature(cache):
    (manifest,) = Store(cache, 10**9).all()
    return manifest.program


@pytest.mark.slow
def test_the_threshold_of_the_command_line_wins_over_that_of_the_environment(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import gtrace as gt\nprint(gt.config.current.hot_threshold)\n")
    done = gtrace(tmp_path / "cache", "warmup", "--threshold", "3", path, GT_HOTPATH_THRESHOLD="5")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


@pytest.mark.slow
def test_a_second_warmup_finds_everything(cache, script):
    done = gtrace(cache, "warmup", script)
    assert (done.returncode, "0 compiled, 1 found compiled" in done.stderr) == (0, True)


@pytest.mark.slow
def test_the_next_run_says_where_its_programs_come_from(cache, script):
    for _ in range(3):
        done = gtrace(cache, "run", script)
        assert done.returncode == 0, done.stderr
        assert "1 found compiled" in done.stdout and "0 compiles" in done.stdout
        if "compiled by an earlier run" in done.stdout:
            return
        # a call that the machine held up for long is followed by an interpreted one, for comparison
    raise AssertionError(done.stdout)


@pytest.mark.slow
def test_warmup_of_a_script_that_fails_or_is_missing(cache, tmp_path):
    assert gtrace(cache, "warmup", tmp_path / "nothing.py").returncode == 2
    path = tmp_path / "raises.py"
    path.write_text("raise SystemExit(3)")
    assert gtrace(cache, "warmup", path).returncode == 3
    path.write_text("1 / 0")
    done = gtrace(cache, "warmup", path)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    assert gtrace(cache, "warmup", path, GT_CACHE_SIZE="0").returncode == 2


@pytest.mark.slow
def test_list_show_and_why(cache, signature):
    done = gtrace(cache, "cache", "list")
    assert f" {signature[:12]} " in done.stdout and "ready" in done.stdout and "1 artifact" in done.stdout
    done = gtrace(cache, "cache", "show", signature[:6])
    assert "sinh" in done.stdout and "torch: " in done.stdout and "in earlier runs" in done.stdout
    done = gtrace(cache, "cache", "why", signature)
    assert "nothing: it is used" in done.stdout
    done = gtrace(cache, "cache", "why", signature, CXX="/bin/true")
    assert "compiler was" in done.stdout and "/bin/true" in done.stdout.replace("/usr", "")
    assert gtrace(cache, "cache", "list", CXX="/bin/true").stdout.count("other compiler") == 1
    for action in ("show", "why", "retry"):
        done = gtrace(cache, "cache", action, "ffffffffff")
        assert done.returncode == 2 and "gtrace cache list" in done.stderr
    assert gtrace(cache, "cache", "list", GT_CACHE_SIZE="0").returncode == 2


@pytest.mark.slow
def test_a_beginning_must_be_that_of_one_signature(cache, signature, tmp_path):
    file, other = tmp_path / "programs.zip", tmp_path / "other"
    gtrace(cache, "cache", "export", file)
    gtrace(other, "cache", "import", file)
    assert len(signature) == 32
    twin = signature[:8] + ("0" if signature[8] != "0" else "1") + signature[9:]
    Store(other, 10**9).note({twin: LedgerEntry()})
    for action in ("show", "why"):
        done = gtrace(other, "cache", action, signature[:8])
        assert done.returncode == 2 and "2 begin so: give more digits" in done.stderr
        assert gtrace(other, "cache", action, signature[:9]).returncode == 0
    assert gtrace(cache, "cache", "why", signature[:12]).stdout.startswith(f"{signature[:12]} ")


@pytest.mark.slow
def test_export_and_import(cache, signature, tmp_path):
    file = tmp_path / "programs.zip"
    assert "wrote 1 artifact" in gtrace(cache, "cache", "export", file).stdout
    other = tmp_path / "other"
    done = gtrace(other, "cache", "import", file)
    assert (done.returncode, done.stdout) == (0, "added 1 artifact\n")
    ours, theirs = Store(cache, 10**9).all(), Store(other, 10**9).all()
    assert [m.code for m in theirs] == [m.code for m in ours]
    assert "nothing: it is used" in gtrace(other, "cache", "why", signature).stdout
    assert gtrace(other, "cache", "import", tmp_path / "nothing").returncode == 2

    def changed(entry, change):
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(tmp_path / "changed.zip", "w") as new:
            for name in old.namelist():
                content = old.read(name)
                new.writestr(name, change(content) if name.endswith(entry) else content)
        return gtrace(tmp_path / "third", "cache", "import", tmp_path / "changed.zip")

    def resealed(content, **fields):
        """What one who knows the format would write."""
        return attrs.evolve(Manifest.from_json(content), **fields).to_json().encode()

    graph, code = ours[0].graph.replace("sinh", "cosh"), ours[0].code
    for entry, change in [
        (".so", lambda content: content[:-1] + b"x"),
        (".json", lambda content: content[:-5]),
        (".json", lambda content: content.replace(b"sinh", b"cosh")),
        (".json", lambda content: resealed(content, name="../../escape")),
        (".json", lambda content: resealed(content, graph=graph)),
        (".json", lambda content: resealed(content, graph="graph() {")),
        (".json", lambda content: resealed(content, code=None)),
        (".json", lambda content: resealed(content, code=attrs.evolve(code, file="../../escape.so"))),
    ]:
        done = changed(entry, change)
        assert done.returncode == 1 and done.stderr.startswith("refused"), done
    assert not list(tmp_path.glob("**/escape*"))


def test_an_archive_of_somebody_else_is_refused_and_its_names_are_shown_as_text(tmp_path):
    file = tmp_path / "programs.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("\x1b]0;owned\x07.json", "{}")
        archive.writestr("[/red].json", "[" * 100_000)
    done = gtrace(tmp_path / "here", "cache", "import", file)
    assert done.returncode == 1 and "\\x1b]0;owned\\x07.json: " in done.stderr and done.stderr.count("refused") == 2
    assert not set(done.stderr) & {"\x1b", "\x07"}
    file.chmod(0o666)
    done = gtrace(tmp_path / "here", "cache", "import", file)
    assert done.returncode == 2 and "can be written by others" in done.stderr
    assert "If you trust who made it, copy it" in done.stderr
    file.unlink()
    os.mkfifo(file, 0o600)
    done = gtrace(tmp_path / "here", "cache", "import", file)
    assert done.returncode == 2 and "is not a plain file" in done.stderr


def test_reasons_with_brackets_and_control_characters_are_shown_as_text(tmp_path):
    text = "graph(%0: f32[4]) {\n  %1: f32[4] = sin(%0)\n  return %1\n}"
    request = CompileRequest(gt.ir.parse_graph(text), ((1,),), native=True)
    verdict = Verdict(VerdictKind.FAILED, "g++: [/usr/bin] \x1b[31m said no")
    others = {"program": "ab" * 16, "structural": "s", "device": "cpu", "toolchain": toolchain(), "created": 1.0}
    Store(tmp_path / "here", 10**9).put(Manifest.of_request(request, name=request.name, verdict=verdict, **others))
    for action in (["list"], ["show", "abab"], ["why", "abab"]):
        done = gtrace(tmp_path / "here", "cache", *action)
        assert done.returncode == 0 and "[/usr/bin] \\x1b[31m said no" in done.stdout.replace("\n", ""), done


@pytest.mark.slow
def test_retry_prune_and_clear(cache, signature, tmp_path):
    file = tmp_path / "programs.zip"
    gtrace(cache, "cache", "export", file)
    other = tmp_path / "other"
    gtrace(other, "cache", "import", file)
    store = Store(other, 10**9)
    (manifest,) = store.all()
    store.set_verdict(manifest.name, Verdict(VerdictKind.DEMOTED, "compiled 2 ms, interpreted 1 ms"))
    assert "demoted: compiled 2 ms" in gtrace(other, "cache", "list").stdout
    assert "it was slower" in gtrace(other, "cache", "why", signature).stdout
    assert "1 artifact will be compiled again" in gtrace(other, "cache", "retry", signature).stdout
    assert store.all() == []
    gtrace(other, "cache", "import", file)
    assert gtrace(other, "cache", "prune").stdout == f"removed 0 artifacts: 0 files, 0 B in {other}\n"
    assert gtrace(other, "cache", "prune", "--to", "much").returncode == 2
    assert gtrace(other, "cache", "prune", "--to", "1kB").stdout.startswith("removed 1 artifact: 2 files, ")
    gtrace(other, "cache", "import", file)
    assert gtrace(other, "cache", "clear").stdout.startswith("removed 1 artifact: 4 files, ")
    assert not other.exists()


@pytest.mark.slow
def test_the_user_s_files_stay(cache, tmp_path):
    """Each command on a folder that holds files of the user's, and on one to which some were added."""
    file = tmp_path / "programs.zip"
    gtrace(cache, "cache", "export", file)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        if folder is ours:
            gtrace(ours, "cache", "import", file)
        folder.mkdir(exist_ok=True)
        for name in ("run.json", "mylib.so", "tmp-notes.txt"):
            (folder / name).write_text("{}")
            os.utime(folder / name, (1000, 1000))
    with pytest.warns(gt.CacheWarning, match="holds files that gtrace did not make"):
        assert gtrace(theirs, "cache", "import", file).returncode == 0
    assert f"in {theirs / 'gtrace-cache'}" in gtrace(theirs, "cache", "list").stdout
    assert gtrace(theirs, "cache", "prune", "--to", "1kB").stdout.startswith("removed 1 artifact: 2 files, ")
    assert gtrace(theirs, "cache", "clear").stdout.endswith(f"in {theirs / 'gtrace-cache'}\n")
    done = gtrace(ours, "cache", "clear")
    assert f"left 3 files and folders in {ours} that gtrace did not make" in done.stdout
    for folder in (theirs, ours):
        assert sorted(os.listdir(folder)) == ["mylib.so", "run.json", "tmp-notes.txt"]


@pytest.mark.slow
def test_native_programs_are_exported_and_imported(tmp_path):
    """Also, a damaged archive gives no error of Python's."""
    text = "graph(%0: f32[4]) {\n  %1: f32[4] = sin(%0)\n  return %1\n}"
    request = CompileRequest(gt.ir.parse_graph(text), ((1,),), native=True)
    others = {"program": "p", "structural": "s", "device": "cpu", "toolchain": toolchain(), "created": 1.0}
    (tmp_path / "made.loop").write_bytes(b"code" * 100)
    Store(tmp_path / "here", 10**9).put(
        Manifest.of_request(request, name=request.name, **others), tmp_path / "made.loop"
    )
    file = tmp_path / "programs.zip"
    for made in (tmp_path / "here").iterdir():
        os.utime(made, (0, 0))  # of 1970, as containers date their files; zip begins with 1980
    assert "wrote 1 artifact" in gtrace(tmp_path / "here", "cache", "export", file).stdout
    done = gtrace(tmp_path / "there", "cache", "import", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, "added 1 artifact\n", "")
    whole, r = file.read_bytes(), random.Random(0)
    for _ in range(150):
        at = r.randrange(len(whole))
        file.write_bytes(r.choice([whole[:at], whole[:at] + r.randbytes(3) + whole[at + 3 :]]))
        assert gtrace(tmp_path / "there", "cache", "import", file).returncode in (0, 1, 2)


FACTS = {
    "versions": rf"gtrace {re.escape(gt.__version__)} in / ; Python 3\.\d+\.\d+ ; torch 2\. ; numpy \d ; optree \d",
    "compilers": r"g\+\+: .*\d",
    "processor": r"\d cores ; torch's threads: \d ; instruction sets: \w+",
    "gpu": "none|cuda",
    "cache": r"store .*: drwx.*owner .*this process is of \d ; \d files of gtrace ; marker: format 1 ; refused: no",
    "settings": "cache_dir='/",
    "variables": r"CUDA_VISIBLE_DEVICES=0 ; GT_WALLET \(no setting ; TORCHELASTIC_AUTH_TOKEN=\(hidden\)",
    "off": "nothing",
}


def test_the_doctor_never_raises(monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("the disk is on fire")

    for place, name in (
        (shutil, "which"), (sysconfig, "get_paths"), (torch.cuda, "is_available"), (doctor, "WorkerClient"),
        (doctor, "supported"), (machine_facts.platform, "platform"), (machine_facts, "instruction_set"),
        (machine_facts, "cache_folder"), (machine_facts, "require_compiler"), (Store, "check"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, broken)
    with gt.config(background=True):
        assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    broken_sections = {line[5:].split()[0] for line in lines if "RuntimeError: the disk is on fire" in line}
    assert broken_sections == {
        "versions", "torch", "compilers", "compiler", "headers", "processor", "gpu", "cache", "store", "off", "compile",
    }  # fmt: skip
    assert [line[5:].split()[0] for line in lines if "settings" in line or "variables" in line]


@pytest.mark.slow
def test_the_doctor(cache, tmp_path):
    secrets = {"GT_WALLET": "of-leather", "TORCHELASTIC_AUTH_TOKEN": "of-brass", "SSH_AGENT": "of-glass"}
    done = gtrace(cache, "doctor", CUDA_VISIBLE_DEVICES="0", **secrets)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout and "gave the right result" in done.stdout
    block = [line[5:].split(maxsplit=1) for line in done.stdout.splitlines()]
    for name, words in FACTS.items():
        said = "\n".join(text for title, text in block if title == name)
        assert all(re.search(word, said) for word in words.split(" ; ")), (name, said)
    assert not any(value in done.stdout for value in secrets.values())
    (tmp_path / "file").write_text("")
    done = gtrace(tmp_path / "file" / "programs", "doctor", CXX="/nonexistent/g++")
    lines = done.stdout.splitlines()
    bad = [line.split()[1] for line in lines if line.startswith("FAIL")]
    assert done.returncode == 1 and bad == ["compiler", "store", "compile"], done.stdout
    assert sum(line.strip().startswith("fix:") for line in lines) == 3
