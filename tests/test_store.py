"""The store: what is in it can be read at any moment by anybody entitled to, and by nobody else."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import attrs
import pytest
import torch

from gtrace.core.backends.symbolic import Relation
from gtrace.core.ir.aval import aval
from gtrace.core.ir.graph import Scalar
from gtrace.core.runtime.cache import store as stores
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.cache.manifest import Code, Manifest, Verdict, VerdictKind
from gtrace.core.runtime.cache.store import Store
from gtrace.errors import CacheWarning

NAME = "0123456789abcdef01234567"
SLOWER = Verdict(VerdictKind.DEMOTED, "slower")


def manifest(name=NAME, **fields):
    defaults = {
        "program": "p", "structural": "s", "ops": 3, "graph": "graph(%0: f32[4]) {\n  return %0\n}", "strides": ((1,),),
        "mode": "default", "relations": None, "threads": 1, "device": "cpu", "toolchain": {"torch": "2.13.0"},
        "created": 1.0,
    }  # fmt: skip
    return Manifest(name, **(defaults | fields))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "programs", 10**9)


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "made.so"
    path.write_bytes(b"code" * 1000)
    return path


def one_warning(words):
    return pytest.warns(CacheWarning, match=words)


def test_what_is_put_is_found(store, code):
    assert store.find(NAME) is None and not store.folder.exists(), "looking writes nothing"
    path = store.put(manifest(), code)
    assert path.read_bytes() == code.read_bytes() and path.parent == store.folder
    found = store.find(NAME)
    assert attrs.evolve(found, code=None) == manifest() and found.size == 4000
    assert store.code(found) == path
    assert stat.S_IMODE(os.stat(store.folder).st_mode) == 0o700
    again = Store(store.folder, 10**9)
    assert again.find(NAME) == found and again.all() == [found]
    store.set_verdict(NAME, SLOWER)
    assert again.find(NAME) == attrs.evolve(found, verdict=SLOWER)
    store.set_verdict(NAME, None)
    assert again.find(NAME) == found
    store.set_verdict("f" * 24, SLOWER)
    assert again.all() == [found], "there is no such artifact"
    store.remove(NAME)
    assert again.find(NAME) is None and os.listdir(store.folder) == ["lock"]


def test_families_are_found_by_the_first_part_of_the_name(store, code):
    family = "f" * 24
    store.put(manifest(), code)
    assert store.family(family) == []
    store.put(manifest(f"{family}-{NAME}"), code)
    for reader in (store, Store(store.folder, 10**9)):
        assert [m.name for m in reader.family(family)] == [f"{family}-{NAME}"]
    store.remove(f"{family}-{NAME}")
    assert store.family(family) == []


def test_threads_of_one_process_use_a_store_at_once(tmp_path, code):
    """One thread looks up families while others put, and prune what was put before."""
    store = Store(tmp_path / "programs", 30_000)
    family = "f" * 24
    errors, done = [], threading.Event()

    def write(k):
        try:
            for n in range(60):
                store.put(manifest(f"{family}-{k}{n:023x}"), code)
        except Exception as error:  # noqa: BLE001 - whatever it is fails the test
            errors.append(error)

    def read():
        try:
            while not done.is_set():
                assert len(store.family(family)) <= 12
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(k,)) for k in range(2)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert errors == []
    assert {m.name for m in store.family(family)} == {m.name for m in Store(store.folder, 10**9).all()}


def truncated_code(store, manifest):
    path = store.folder / manifest.code.file
    path.write_bytes(path.read_bytes()[:-1])


def other_code(store, manifest):
    (store.folder / manifest.code.file).write_bytes(b"something else")


def no_code(store, manifest):
    os.unlink(store.folder / manifest.code.file)


def linked_code(store, manifest):
    path = store.folder / manifest.code.file
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def code_elsewhere(store, manifest):
    outside = store.folder.parent / "outside.so"
    outside.write_bytes(b"code" * 1000)
    there = attrs.evolve(manifest.code, file="../outside.so")
    (store.folder / f"{NAME}.json").write_text(attrs.evolve(manifest, code=there).to_json())


def no_code_named(store, manifest):
    (store.folder / f"{NAME}.json").write_text(attrs.evolve(manifest, code=None).to_json())


def truncated_manifest(store, manifest):
    path = store.folder / f"{NAME}.json"
    path.write_text(path.read_text()[:-20])


def changed_manifest(store, manifest):
    """Still JSON, still of this name: one byte is another."""
    path = store.folder / f"{NAME}.json"
    path.write_text(path.read_text().replace('"ops": 3', '"ops": 7'))


def empty_manifest(store, manifest):
    (store.folder / f"{NAME}.json").write_text("")


def foreign_manifest(store, manifest):
    (store.folder / f"{NAME}.json").write_text('["a", "list"]')


def manifest_of_another(store, manifest):
    (store.folder / f"{NAME}.json").write_text(attrs.evolve(manifest, name=NAME[::-1]).to_json())


def another_format(store, manifest):
    data = json.loads(manifest.to_json())
    (store.folder / f"{NAME}.json").write_text(json.dumps({**data, "format": 99}))


@pytest.mark.parametrize(
    "damage",
    [
        truncated_code, other_code, no_code, linked_code, code_elsewhere, no_code_named,
        truncated_manifest, empty_manifest, changed_manifest, foreign_manifest, manifest_of_another, another_format,
    ],
)  # fmt: skip
def test_damage_is_a_miss_with_one_warning_and_is_replaced(store, code, damage):
    store.put(manifest(), code)
    damage(store, store.find(NAME))
    with pytest.warns(CacheWarning, match="cannot be used and is removed") as caught:
        for _ in range(3):
            found = store.find(NAME)
            assert found is None or store.code(found) is None
    assert len(caught) == 1
    fresh = Store(store.folder, 10**9)
    assert fresh.put(manifest(), code) is not None
    assert fresh.code(fresh.find(NAME)).read_bytes() == code.read_bytes()


def test_a_folder_that_others_can_write_is_refused(store, code):
    store.put(manifest(), code)
    os.chmod(store.folder, 0o777)
    again = Store(store.folder, 10**9)
    with one_warning("can be written by others"):
        assert again.find(NAME) is None
    assert again.all() == [] and again.family("f" * 24) == [] and again.ledger() == {}
    with one_warning("not kept"):
        assert Store(store.folder, 10**9).put(manifest(), code) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_or_file_of_somebody_else_is_refused(store, code):
    path = store.put(manifest(), code)
    os.chown(path, 12345, -1)
    with one_warning("not a file of this user"):
        assert store.code(store.find(NAME)) is None
    os.chown(store.folder, 12345, -1)
    with one_warning("belongs to another user"):
        assert Store(store.folder, 10**9).find(NAME) is None


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path, code):
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file" / "programs", 10**9)
    with pytest.warns(CacheWarning) as caught:
        assert store.find(NAME) is None
        for _ in range(3):
            assert store.put(manifest(), code) is None
        store.note({"s": LedgerEntry()})
    assert len([w for w in caught if "not kept" in str(w.message)]) == 1


def python(code, *args, **kwargs):
    return subprocess.Popen([sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)], **kwargs)


def test_a_full_disk_costs_one_warning(store, code):
    """Files of this process may have 1,000 bytes: writing the code fails half way, as on a full disk."""
    script = """
        import resource, signal, sys, warnings
        from pathlib import Path
        from gtrace.core.runtime.cache.manifest import Manifest
        from gtrace.core.runtime.cache.store import Store
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        store, made = Store(Path(sys.argv[1]), 10**9), Manifest.from_json(sys.argv[3])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert store.put(made, Path(sys.argv[2])) is None
            assert store.put(made, Path(sys.argv[2])) is None
        (warning,) = caught
        assert "not kept" in str(warning.message)
        assert store.find(made.name) is None
    """
    assert python(script, store.folder, code, manifest().to_json()).wait() == 0
    assert os.listdir(store.folder) == ["lock"], "nothing is left of the attempt"


WRITER = """
    import sys
    from pathlib import Path
    import attrs
    from gtrace.core.runtime.cache.ledger import LedgerEntry
    from gtrace.core.runtime.cache.manifest import Manifest
    from gtrace.core.runtime.cache.store import Store
    store, name = Store(Path(sys.argv[1]), 10**9), "0123456789abcdef0123456{}"
    code, made = Path(sys.argv[2]), Manifest.from_json(sys.argv[5])
    print("ready", flush=True)
    for k in range(int(sys.argv[3])):
        code.write_bytes(sys.argv[4].encode() * 20_000)
        made = attrs.evolve(made, name=name.format(k % 4), program=sys.argv[4])
        store.put(made, code)
        store.note({"s": LedgerEntry()})
        found = store.find(made.name)
        found is not None and store.code(found)
"""


def test_processes_write_the_same_keys_at_once(store, tmp_path):
    count = 4
    writers = [
        python(WRITER, store.folder, tmp_path / f"{k}.so", 12, f"w{k}", manifest().to_json()) for k in range(count)
    ]
    assert [w.wait() for w in writers] == [0] * count
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known = store.all()
        assert len(known) == 4
        for found in known:
            assert store.code(found).read_bytes() == found.program.encode() * 20_000
    assert store.ledger()["s"].runs == count * 12, "no note is lost"


def test_a_kill_at_any_moment_leaves_what_can_be_read(store, tmp_path):
    r = random.Random(0)
    seen = 0
    for k in range(6):
        arguments = store.folder, tmp_path / "w.so", 10**6, f"w{k}", manifest().to_json()
        writer = python(WRITER, *arguments, stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(r.uniform(0, 0.15))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader = Store(store.folder, 10**9)
            for found in reader.all():
                assert reader.code(found).read_bytes() == found.program.encode() * 20_000
                seen += 1
            reader.note({"s": LedgerEntry()})
    assert seen > 4


def test_what_another_process_prunes_meanwhile_is_a_miss(store, tmp_path):
    """Two processes write more than the limit allows, so that each removes what the other has just written."""
    full = WRITER.replace("10**9", "70_000")
    writers = [
        python(full, store.folder, tmp_path / f"{k}.so", 10**6, f"w{k}", manifest().to_json(), stdout=subprocess.PIPE)
        for k in range(2)
    ]
    for writer in writers:
        writer.stdout.readline()
    end = time.monotonic() + 3
    seen = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = Store(store.folder, 70_000)
        while time.monotonic() < end:
            for found in reader.all():
                path = reader.code(found)
                seen += path is not None
        assert [writer.poll() for writer in writers] == [None] * 2, "neither was warned of anything"
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
        for found in reader.all():
            assert reader.code(found) is not None, "no manifest is left without its code"
    assert seen > 10


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("mode", [0o500, 0o700])
def test_a_folder_that_can_only_be_read_is_read(store, code, mode):
    """The folder is one's own but not to be written, or holds files of one's own that cannot be read."""
    store.put(manifest(), code)
    store.note({"s": LedgerEntry()})
    for path in (store.folder, *store.folder.iterdir()):
        os.chown(path, 12345, -1)
    os.chmod(store.folder.parent, 0o755)
    os.chmod(store.folder, mode)
    script = """
        import os, sys, warnings
        from pathlib import Path
        from gtrace.core.runtime.cache.ledger import LedgerEntry
        from gtrace.core.runtime.cache.manifest import Manifest, Verdict, VerdictKind
        from gtrace.core.runtime.cache.store import Store
        made, code = Manifest.from_json(sys.argv[2]), Path(sys.argv[3])
        os.setuid(12345)
        store = Store(Path(sys.argv[1]), 10**9)
        found = store.find(made.name)
        assert store.code(found) is not None and len(store.all()) == 1 and store.ledger()["s"].runs == 1
        if sys.argv[4] == "False":
            sys.exit()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert store.put(made, code) is None
            store.set_verdict(made.name, Verdict(VerdictKind.DEMOTED, "slow"))
            store.note({"s": LedgerEntry()})
            store.remove(made.name)
            assert store.prune(0) == 0
        (warning,) = caught
        assert "not kept" in str(warning.message)
        assert store.find(made.name) == found
    """
    os.chmod(code, 0o644)
    for path in code.parents:  # pytest's folders are its own
        if path == Path("/tmp"):
            break
        os.chmod(path, 0o755)
    os.chmod(store.folder, mode)
    assert python(script, store.folder, manifest().to_json(), code, mode == 0o500).wait() == 0


def test_a_clock_that_was_wrong_does_no_harm(store, code):
    """Files of the future: they are used, and the first use puts them in order again."""
    future = time.time() + 10**8
    names = [f"{k:024x}" for k in range(3)]
    for name in names:
        store.put(manifest(name, created=future), code)
    os.utime(store.folder / f"{names[0]}.json", (future, future))
    (store.folder / "tmp-new").write_bytes(b"x")
    os.utime(store.folder / "tmp-new", (future, future))
    assert store.code(store.find(names[0])) is not None
    for k, name in enumerate(names):
        assert os.stat(store.folder / f"{name}.json").st_mtime < time.time() + 60
        os.utime(store.folder / f"{name}.json", (1000 + k, 1000 + k))
    assert store.prune(5_500) == 2
    assert [m.name for m in store.all()] == [names[2]]


def test_the_least_recently_used_goes_first(store, code):
    names = [f"{k:024x}" for k in range(6)]
    for k, name in enumerate(names):
        store.put(manifest(name), code)
        os.utime(store.folder / f"{name}.json", (1000 + k, 1000 + k))
    store.code(store.find(names[0]))  # used now
    size = sum(f.stat().st_size for f in store.folder.iterdir())
    assert store.prune(size) == 0
    assert store.prune(size // 2) == 3
    assert [m.name for m in store.all()] == [names[4], names[5], names[0]]
    small = Store(store.folder, size // 6 + 100)
    small.put(manifest("f" * 24), code)
    assert [m.name for m in small.all()] == ["f" * 24], "putting prunes"


def test_the_number_of_artifacts_is_capped(store, code, monkeypatch):
    monkeypatch.setattr(stores, "MAX_FILES", 5)
    for k in range(9):
        store.put(manifest(f"{k:024x}"), code)
        os.utime(store.folder / f"{k:024x}.json", (1000 + k, 1000 + k))
    assert [int(m.name, 16) for m in store.all()] == [4, 5, 6, 7, 8]


def test_leftovers_of_killed_processes_go(store, code):
    store.put(manifest(), code)
    old = time.time() - 2 * stores.STALE_SECONDS
    for name, age in [("tmp-abc", old), ("tmp-new", None), ("f" * 24 + ".0123.so", old)]:
        (store.folder / name).write_bytes(b"x")
        if age:
            os.utime(store.folder / name, (age, age))
    store.prune()
    assert sorted(os.listdir(store.folder)) == sorted([f"{NAME}.json", store.find(NAME).code.file, "lock", "tmp-new"])


def test_the_ledger_adds_numbers_and_replaces_words(store, monkeypatch):
    store.note({"a": LedgerEntry(interpreted_seconds=0.5, tier="interpreted")})
    store.note({"a": LedgerEntry(interpreted_seconds=0.25, tier="compiled"), "b": LedgerEntry()})
    assert store.ledger() == {"a": LedgerEntry(runs=2, interpreted_seconds=0.75, tier="compiled"), "b": LedgerEntry()}
    monkeypatch.setattr(stores, "MAX_LEDGER", 2)
    store.note({"c": LedgerEntry()})
    assert set(store.ledger()) == {"b", "c"}
    path = store.folder / "ledger.json"
    text = path.read_text()
    for damaged in ("{", text.replace('"runs": 1', '"runs": "1"'), text.replace('"tier"', '"other"'), '{"format": 3}'):
        path.write_text(damaged)
        again = Store(store.folder, 10**9)
        with one_warning("ledger.json cannot be used"):
            assert again.ledger() == {}
    path.write_text('{"a": {}}')  # of another version of gtrace: no damage, and no warning
    assert Store(store.folder, 10**9).ledger() == {} and path.exists()


# -- manifests as JSON


FULL = manifest(
    f"{'f' * 24}-{NAME}",
    relations=(Relation((0, 1), 2, 3, 4, 5), Relation(offset=7)),
    constants=(Scalar(-0.0, aval((), torch.float32, weak=True)), None, Scalar(True, aval((), torch.bool))),
    guards=(["GreaterThan", ["size", 0], 2], ["Not", True]),
    verdict=SLOWER,
    code=Code("x.so", "ab" * 32, 17),
    compile_seconds=2.5,
    native=True,
)


def test_a_manifest_is_what_its_json_says():
    for written in (manifest(), FULL):
        read = Manifest.from_json(written.to_json())
        assert read == written and read.to_json() == written.to_json()
        assert all(type(a) is type(b) for a, b in zip(attrs.astuple(read), attrs.astuple(written), strict=True))
    assert str(FULL.request().graph) == FULL.graph


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", 2, "expected format 4, got 2"),
        ("name", 3, "'name' to be a text, got 3"),
        ("ops", True, "'ops' to be an integer, got True"),
        ("ops", None, "'ops' to be an integer"),
        ("native", 1, "'native' to be true or false, got 1"),
        ("strides", [[1, "2"]], "'strides' to be lists of integers"),
        ("relations", [[[0], 1, 0, 1]], "'relations' to be null or a list of relations"),
        ("relations", [[[0], 1, 0, 1, "x"]], "'relations'"),
        ("constants", [[1.0, "float"]], "'constants' to be"),
        ("constants", [["1", "f32[]"]], "'constants' to be"),
        ("toolchain", {"torch": 2}, "'toolchain' to be an object of texts"),
        ("created", float("inf"), "'created' to be a finite number"),
        ("code", {"file": "x.so"}, "expected a field 'sha256', got none"),
        ("code", "x.so", "'code' to be null or an object, got 'x.so'"),
        ("verdict", {"kind": "bad", "reason": ""}, "'kind' to be a verdict, got 'bad'"),
    ],
)
def test_a_manifest_with_a_wrong_field_is_refused(field, value, words):
    def changed(**fields):
        data = {k: v for k, v in (json.loads(FULL.to_json()) | fields).items() if v is not Ellipsis}
        return json.dumps(data | {"checksum": hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()})

    with pytest.raises(ValueError, match=re.escape(words)):
        Manifest.from_json(changed(**{field: value, "checksum": ...}))
    with pytest.raises(ValueError, match=f"expected (a field '{field}'|format 4)"):
        Manifest.from_json(changed(**{field: ..., "checksum": ...}))


def test_clear(store, code):
    store.put(manifest(), code)
    assert store.clear() == 1 and not store.folder.exists()
    assert store.put(manifest(), code) is not None
