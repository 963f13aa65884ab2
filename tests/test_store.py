"""The store: what is in it can be read at any moment by anybody entitled to, and by nobody else."""

from __future__ import annotations

import contextlib
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
from gtrace.core.base.json_fields import with_checksum
from gtrace.core.ir.aval import aval
from gtrace.core.ir.graph import Scalar
from gtrace.core.partitioner.partitioned import DividedRecord
from gtrace.core.runtime.cache import folder as folders
from gtrace.core.runtime.cache import store as stores
from gtrace.core.runtime.cache.folder import DERIVED, LEDGER, LOCK, MARKER, manifest_file
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.cache.manifest import Manifest, StoredCode, Verdict, VerdictKind
from gtrace.core.runtime.cache.store import Store
from gtrace.errors import CacheWarning

NAME = "0123456789abcdef01234567"
SLOWER = Verdict(VerdictKind.DEMOTED, "slower")


def manifest(name=NAME, **fields):
    defaults = {
        "program": "p", "structural": "s", "ops": 3, "graph": "graph(%0: f32[4]) {\n  return %0\n}", "strides": ((1,),),
        "mode": "default", "relations": None, "threads": 1, "device": torch.device("cpu"),
        "toolchain": {"torch": "2.13.0"}, "created": 1.0,
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
    assert again.find(NAME) is None and sorted(os.listdir(store.folder)) == [MARKER, LOCK]


def test_families_are_found_by_the_first_part_of_the_name(store, code):
    family = "f" * 24
    store.put(manifest(), code)
    assert store.family(family) == []
    store.put(manifest(f"{family}-{NAME}"), code)
    for reader in (store, Store(store.folder, 10**9)):
        assert [m.name for m in reader.family(family)] == [f"{family}-{NAME}"]
    store.remove(f"{family}-{NAME}")
    assert store.family(family) == []


@pytest.mark.slow
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
    (store.folder / manifest_file(NAME)).write_text(attrs.evolve(manifest, code=there).to_json())


def no_code_named(store, manifest):
    (store.folder / manifest_file(NAME)).write_text(attrs.evolve(manifest, code=None).to_json())


def truncated_manifest(store, manifest):
    path = store.folder / manifest_file(NAME)
    path.write_text(path.read_text()[:-20])


def changed_manifest(store, manifest):
    """Still JSON, still of this name: one byte is another."""
    path = store.folder / manifest_file(NAME)
    path.write_text(path.read_text().replace('"ops": 3', '"ops": 7'))


def empty_manifest(store, manifest):
    (store.folder / manifest_file(NAME)).write_text("")


def foreign_manifest(store, manifest):
    (store.folder / manifest_file(NAME)).write_text('["a", "list"]')


def manifest_of_another(store, manifest):
    (store.folder / manifest_file(NAME)).write_text(attrs.evolve(manifest, name=NAME[::-1]).to_json())


def another_format(store, manifest):
    data = json.loads(manifest.to_json())
    (store.folder / manifest_file(NAME)).write_text(json.dumps({**data, "format": 99}))


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
    with one_warning("belongs to another user"):
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


@pytest.mark.slow
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
    assert sorted(os.listdir(store.folder)) == [MARKER, LOCK], "nothing is left of the attempt"


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
            assert store.prune(0).artifacts == 0
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
    os.utime(store.folder / manifest_file(names[0]), (future, future))
    (store.folder / "gtrace-tmp-abcdefgh").write_bytes(b"x")
    os.utime(store.folder / "gtrace-tmp-abcdefgh", (future, future))
    assert store.code(store.find(names[0])) is not None
    for k, name in enumerate(names):
        assert os.stat(store.folder / manifest_file(name)).st_mtime < time.time() + 60
        os.utime(store.folder / manifest_file(name), (1000 + k, 1000 + k))
    assert store.prune(5_500).artifacts == 2
    assert [m.name for m in store.all()] == [names[2]]


def test_the_least_recently_used_goes_first(store, code):
    names = [f"{k:024x}" for k in range(6)]
    for k, name in enumerate(names):
        store.put(manifest(name), code)
        os.utime(store.folder / manifest_file(name), (1000 + k, 1000 + k))
    store.code(store.find(names[0]))  # used now
    size = sum(f.stat().st_size for f in store.folder.iterdir())
    assert store.prune(size).artifacts == 0
    assert store.prune(size // 2 + 500).artifacts == 3
    assert [m.name for m in store.all()] == [names[4], names[5], names[0]]
    small = Store(store.folder, size // 6 + 500)
    small.put(manifest("f" * 24), code)
    assert [m.name for m in small.all()] == ["f" * 24], "putting prunes"


def test_the_number_of_artifacts_is_capped(store, code, monkeypatch):
    monkeypatch.setattr(stores, "MAX_FILES", 5)
    for k in range(9):
        store.put(manifest(f"{k:024x}"), code)
        os.utime(store.folder / manifest_file(f"{k:024x}"), (1000 + k, 1000 + k))
    assert [int(m.name, 16) for m in store.all()] == [4, 5, 6, 7, 8]


def test_leftovers_of_killed_processes_go(store, code):
    store.put(manifest(), code)
    old = time.time() - 2 * stores.STALE_SECONDS
    for name, age in [
        ("gtrace-tmp-abcdef12", old),
        ("gtrace-tmp-abcdefgh", None),
        ("gtrace-" + "f" * 24 + ".0123456789ab.so", old),
    ]:
        (store.folder / name).write_bytes(b"x")
        if age:
            os.utime(store.folder / name, (age, age))
    store.prune()
    assert sorted(os.listdir(store.folder)) == sorted(
        [manifest_file(NAME), store.find(NAME).code.file, LOCK, MARKER, "gtrace-tmp-abcdefgh"]
    )


def test_the_ledger_adds_numbers_and_replaces_words(store, monkeypatch):
    store.note({"a": LedgerEntry(interpreted_seconds=0.5, tier="interpreted")})
    store.note({"a": LedgerEntry(interpreted_seconds=0.25, tier="compiled"), "b": LedgerEntry()})
    assert store.ledger() == {"a": LedgerEntry(runs=2, interpreted_seconds=0.75, tier="compiled"), "b": LedgerEntry()}
    monkeypatch.setattr(stores, "MAX_LEDGER", 2)
    store.note({"c": LedgerEntry()})
    assert set(store.ledger()) == {"b", "c"}
    path = store.folder / LEDGER
    text = path.read_text()
    for damaged in ("{", text.replace('"runs": 1', '"runs": "1"'), text.replace('"tier"', '"other"'), '{"format": 4}'):
        path.write_text(damaged)
        again = Store(store.folder, 10**9)
        with one_warning("gtrace-ledger.json cannot be used"):
            assert again.ledger() == {}
    path.write_text(json.dumps(with_checksum({"format": 99})))  # another version of gtrace: no damage, and no warning
    assert Store(store.folder, 10**9).ledger() == {} and path.exists()


# -- manifests as JSON


FULL = manifest(
    f"{'f' * 24}-{NAME}",
    relations=(Relation((0, 1), 2, 3, 4, 5), Relation(offset=7)),
    constants=(Scalar(-0.0, aval((), torch.float32, weak=True)), None, Scalar(True, aval((), torch.bool))),
    guards=(["GreaterThan", ["size", 0], 2], ["Not", True]),
    verdict=SLOWER,
    code=StoredCode("x.so", "ab" * 32, 17),
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
        ("format", 2, "expected format 6, got 2"),
        ("name", 3, "'name' to be a text, got 3"),
        ("ops", True, "'ops' to be an integer, got True"),
        ("ops", None, "'ops' to be an integer"),
        ("native", 1, "'native' to be true or false, got 1"),
        ("strides", [[1, "2"]], "'strides' to be a list, got [[1, '2']]"),
        ("relations", [[[0], 1, 0, 1, 2]], "'relations' to be null or a list"),
        ("relations", [{"places": [0]}], "expected a field 'factor', got none"),
        ("constants", [{"value": 1.0, "aval": "float"}], "'aval' to be a text, got 'float'"),
        ("constants", [{"value": "1", "aval": "f32[]"}], "'value' to be"),
        ("device", "gpu", "'device' to be a text, got 'gpu'"),
        ("toolchain", {"torch": 2}, "'toolchain' to be an object"),
        ("created", float("inf"), "'created' to be a finite number"),
        ("code", {"file": "x.so"}, "expected a field 'sha256', got none"),
        ("code", "x.so", "'code' to be null or an object, got 'x.so'"),
        ("verdict", {"kind": "bad", "reason": ""}, "'kind' to be one of failed, demoted, quarantined, got 'bad'"),
    ],
)
def test_a_manifest_with_a_wrong_field_is_refused(field, value, words):
    def changed(**fields):
        data = {k: v for k, v in (json.loads(FULL.to_json()) | fields).items() if v is not Ellipsis}
        return json.dumps(data | {"checksum": hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()})

    with pytest.raises(ValueError, match=re.escape(words)):
        Manifest.from_json(changed(**{field: value, "checksum": ...}))
    with pytest.raises(ValueError, match=f"expected (a field '{field}'|format 6)"):
        Manifest.from_json(changed(**{field: ..., "checksum": ...}))


def test_clear(store, code):
    store.put(manifest(), code)
    assert store.clear().artifacts == 1 and not store.folder.exists()
    assert store.put(manifest(), code) is not None


# -- whose files are touched

USERS = (
    "run.json", "mylib.so", "model.pt2", "ledger.json", "derived.json", "lock", "tmp-notes.txt", "gtrace-notes.json",
    "507f1f77bcf86cd799439011.json", "507f1f77bcf86cd799439011.0123456789ab.so", "gtrace-tmp-notes",
)  # fmt: skip


def users_files(folder):
    """Make files of a user, old ones; returns a function that says which of them are as they were."""
    (folder / "src").mkdir(parents=True)
    for name in (*USERS, "src/main.py"):
        (folder / name).write_text('{"lr": 1}')
        os.utime(folder / name, (1000, 1000))
    return lambda: [name for name in (*USERS, "src/main.py") if (folder / name).read_text() == '{"lr": 1}']


def test_a_folder_of_the_user_s_is_left_alone(tmp_path, code):
    theirs = tmp_path / "project"
    kept = users_files(theirs)
    store = Store(theirs, 10**9)
    assert store.find(NAME) is None and store.all() == [] and store.prune(0).files == 0 and store.clear().files == 0
    with one_warning("project holds files that gtrace did not make.*kept in .*project/gtrace-cache") as caught:
        path = store.put(manifest(), code)
        store.note({"s": LedgerEntry()})
    assert len(caught) == 1 and path.parent == store.folder == theirs / "gtrace-cache"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Store(theirs, 6_000)  # later processes know the subfolder
        assert again.find(NAME) is not None and again.ledger() and again.check() == (1, 4000)
        assert again.prune(0).artifacts == 1
        again.put(manifest(), code)
        again.extend(DERIVED, {"a": "text"})
        again.clear()
    assert sorted(os.listdir(theirs)) == sorted([*USERS, "src"]), "the subfolder goes, and nothing else"
    assert kept() == [*USERS, "src/main.py"]


def test_what_the_user_adds_to_the_folder_later_stays(store, code):
    store.put(manifest(), code)
    kept = users_files(store.folder)
    again = Store(store.folder, 6_000)
    assert again.find(NAME) is not None and again.all() and again.prune().files == 0, "theirs are not counted"
    assert folders.count_foreign(store.folder) == len(USERS) + 1
    assert again.prune(0) == folders.Removed(1, 2, again.prune(0).size + 4000 + len(manifest_text(manifest(), code)))
    again.put(manifest(), code)
    assert again.clear().artifacts == 1
    assert sorted(os.listdir(store.folder)) == sorted([*USERS, "src"])
    assert kept() == [*USERS, "src/main.py"]


def manifest_text(manifest, code):
    digest = hashlib.sha256(code.read_bytes()).hexdigest()
    file = folders.code_file(manifest.name, digest, code.suffix)
    return attrs.evolve(manifest, code=StoredCode(file, digest, code.stat().st_size)).to_json()


def test_a_folder_that_the_user_made_is_not_removed(tmp_path, code):
    (tmp_path / "empty").mkdir()
    store = Store(tmp_path / "empty", 10**9)
    store.put(manifest(), code)
    assert store.folder == tmp_path / "empty" and store.clear().artifacts == 1
    assert os.listdir(tmp_path / "empty") == []
    assert store.put(manifest(), code) is not None and store.find(NAME) is not None


def test_a_lost_or_damaged_marker(store, code):
    """It is written anew if the folder has nothing of others; else the folder counts as one of the user's."""
    store.put(manifest(), code)
    marker = store.folder / MARKER
    whole = marker.read_bytes()
    for damage in (b"", b"{}", b"[" * 100_000, whole.replace(b'"format": 1', b'"format": 7'), None):
        marker.unlink() if damage is None else marker.write_bytes(damage)
        again = Store(store.folder, 10**9)
        assert again.find(NAME) is not None
        again.put(manifest(), code)
        assert folders.read_marker(store.folder) is not None
    marker.write_bytes(b"{}")
    kept = users_files(store.folder)
    again = Store(store.folder, 10**9)
    assert again.find(NAME) is None
    with one_warning("gtrace-cache"):
        assert again.put(manifest(), code).parent == store.folder / "gtrace-cache"
    again.clear()
    assert kept() == [*USERS, "src/main.py"] and marker.read_bytes() == b"{}"


def test_a_folder_of_another_format_is_refused(store, code):
    store.put(manifest(), code)
    data = {"format": 99, "gtrace": "9.9", "made_folder": True}
    (store.folder / MARKER).write_text(json.dumps(with_checksum(data)))
    before = sorted(os.listdir(store.folder))
    again = Store(store.folder, 10**9)
    with one_warning("is a cache of gtrace 9.9 and has format 99, not 1"):
        assert again.find(NAME) is None
    assert again.clear().files == 0
    with one_warning("has format 99"):
        assert again.put(manifest(), code) is None
    assert sorted(os.listdir(store.folder)) == before


def test_a_subfolder_of_the_user_s_with_our_name_is_refused(tmp_path, code):
    kept = users_files(tmp_path / "project" / "gtrace-cache")
    store = Store(tmp_path / "project", 10**9)
    with one_warning("gtrace-cache holds files that gtrace did not make"):
        assert store.put(manifest(), code) is None
    with one_warning("What it holds is not used"):
        assert store.clear().files == 0
    assert kept() == [*USERS, "src/main.py"]


@pytest.mark.slow
def test_without_a_home_the_folder_is_a_private_temporary_one(tmp_path):
    """As in a container whose user has no entry in passwd."""
    script = """
        import os, pwd, sys
        def nobody(uid):
            raise KeyError(uid)
        pwd.getpwuid = nobody
        from gtrace.core.runtime.cache.folder import default_folder
        print(default_folder())
    """
    env = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")} | {"TMPDIR": str(tmp_path)}
    env["USER"] = "nobody"
    done = python(script, env=env, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.communicate()[0] == f"{tmp_path}/gtrace-{os.getuid()}/programs\n" and done.returncode == 0
    assert os.listdir(tmp_path) == [], "no folder named ~, and none before something is kept"


# -- damaged files of any kind


def bytes_of(r, good):
    """Return some damaged forms of a file's content."""
    at = r.randrange(len(good))
    deep = r.choice([b"[", b'{"a":', b'[{"b":[']) * r.choice([500, 990, 100_000])
    yield good[:at]
    yield good[:at] + bytes([good[at] ^ (1 << r.randrange(8))]) + good[at + 1 :]
    yield good[:at] + r.randbytes(r.randrange(1, 40)) + good[at:]
    yield good[:at] + good[at + r.randrange(1, 40) :]
    yield r.randbytes(r.randrange(200))
    yield deep
    yield good[:at] + deep + good[at:]
    yield b"[" * 900 + b"]" * 900
    yield r.choice([b"", b"null", b"3", b'"text"', b"[]", b"{}", b"\x00" * 100, b"\xff\xfe", b"1" * 10_000, b"NaN"])


def typed(r, good):
    """Return a file whose checksum is right, with a field of another type or value."""
    data = json.loads(good)
    del data["checksum"]
    place = data
    while isinstance(place[(key := r.choice(list(place)))], dict) and place[key] and r.random() < 0.7:
        place = place[key]
    values = [None, True, -1, 2**70, 10**400, 1.5, "text", "\ud800", "\x1b[2J", [], [[]], [1, [2]], {}, {"a": 1}]
    place[key] = r.choice(values)
    return json.dumps(with_checksum(data)).encode()


def test_damaged_files_are_never_errors(store, code):
    """Files that are cut, changed, binary, deep, or of other types: at most a warning, and never another content."""
    r = random.Random(0)
    record = DividedRecord("a" * 32, "mesh", "graph", ("f32[2]",), ("f32[2]",), (), (("sort", None),))
    full = attrs.evolve(FULL, code=None)
    store.put(full, code)
    store.note({"ab" * 16: LedgerEntry(ops="sin cos", interpreted_seconds=0.5)})
    store.extend(DERIVED, {"key": "graph() {}"})
    store.keep_divided(record)
    kept = store.find(FULL.name)
    looks = [
        (folders.manifest_file(FULL.name), lambda store: store.find(FULL.name), (kept, None)),
        (LEDGER, lambda store: store.ledger(), (store.ledger(), {})),
        (DERIVED, lambda store: store.table(DERIVED), ({"key": "graph() {}"}, {})),
        (folders.divided_file(record.name), lambda store: store.find_divided(record.name), (record, None)),
    ]
    tried = 0
    for file, look, expected in looks:
        path = store.folder / file
        good = path.read_bytes()
        for _ in range(12):
            for damaged in (*bytes_of(r, good), *(typed(r, good) for _ in range(3))):
                path.write_bytes(damaged)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    found = look(Store(store.folder, 10**9))
                tried += 1
                if found not in expected:  # a right checksum: another value of a right type
                    assert damaged[:1] == b"{" and json.loads(damaged)["checksum"], damaged
                assert [w.category for w in caught] in ([], [CacheWarning]), damaged
                assert found or caught or b'"format"' in damaged, damaged
                assert path.exists() == (not caught), "what is damaged is removed"
        path.write_bytes(good)
        assert look(Store(store.folder, 10**9)) == expected[0]
    assert tried > 500


@pytest.mark.parametrize("file", [manifest_file(NAME), "code", LEDGER, DERIVED, LOCK, MARKER])
@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_something_else_in_the_place_of_a_file(store, code, tmp_path, file, kind):
    """It is no error, and what a link leads to, or a folder holds, stays."""
    made = store.put(manifest(), code)
    store.note({"s": LedgerEntry()})
    store.extend(DERIVED, {"key": "text"})
    path = made if file == "code" else store.folder / file
    path.unlink()
    other = tmp_path / "precious"
    other.write_text("precious")
    if kind == "folder":
        path.mkdir()
        (path / "precious").write_text("precious")
    elif kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            again = Store(store.folder, 10**9)
            found = again.find(NAME)
            assert found is None or again.code(found) is None or file not in (manifest_file(NAME), "code")
            again.ledger()
            again.table(DERIVED)
            again.put(manifest(), code)
            again.note({"s": LedgerEntry()})
            again.extend(DERIVED, {"key": "text"})
            again.prune(0)
        with contextlib.suppress(OSError):
            again.clear()
    assert caught and {w.category for w in caught} == {CacheWarning}
    assert other.read_text() == "precious"
    assert kind != "folder" or (path / "precious").read_text() == "precious"
