"""The store: what is in it can be read at any moment by anybody entitled to, and by nobody else."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import time
import warnings

import pytest

from gtrace.errors import CacheWarning
from gtrace.runtime import store as stores
from gtrace.runtime.store import Store

NAME = "0123456789abcdef01234567"


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
    path = store.put(NAME, {"program": "p", "ops": 3}, code)
    assert path.read_bytes() == code.read_bytes() and path.parent == store.folder
    told = store.find(NAME)
    assert (told["name"], told["program"], told["ops"]) == (NAME, "p", 3)
    assert store.code(told) == path
    assert stat.S_IMODE(os.stat(store.folder).st_mode) == 0o700
    again = Store(store.folder, 10**9)
    assert again.find(NAME) == told and [t["name"] for t in again.all()] == [NAME]
    store.amend(NAME, demoted="slower")
    assert again.find(NAME)["demoted"] == "slower"
    store.amend(NAME, demoted=None)
    assert "demoted" not in again.find(NAME)
    store.remove(NAME)
    assert again.find(NAME) is None and os.listdir(store.folder) == []


def test_families_are_found_by_the_first_part_of_the_name(store, code):
    family = "f" * 24
    store.put(NAME, {}, code)
    assert store.family(family) == []
    store.put(f"{family}-{NAME}", {"a": 1}, code)
    assert [t["a"] for t in store.family(family)] == [1]
    assert [t["a"] for t in Store(store.folder, 10**9).family(family)] == [1]


def truncated_code(store, told):
    path = store.folder / told["file"]
    path.write_bytes(path.read_bytes()[:-1])


def other_code(store, told):
    (store.folder / told["file"]).write_bytes(b"something else")


def no_code(store, told):
    os.unlink(store.folder / told["file"])


def linked_code(store, told):
    path = store.folder / told["file"]
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def code_elsewhere(store, told):
    outside = store.folder.parent / "outside.so"
    outside.write_bytes(b"code" * 1000)
    told = {**told, "file": "../outside.so", "sha256": hashlib.sha256(b"code" * 1000).hexdigest()}
    (store.folder / f"{NAME}.json").write_text(json.dumps(told))


def truncated_description(store, told):
    path = store.folder / f"{NAME}.json"
    path.write_text(path.read_text()[:-20])


def changed_description(store, told):
    """Still JSON, still of this name: a condition that another byte made another one."""
    (store.folder / f"{NAME}.json").write_text(json.dumps({**told, "a": 7}))


def empty_description(store, told):
    (store.folder / f"{NAME}.json").write_text("")


def foreign_description(store, told):
    (store.folder / f"{NAME}.json").write_text('["a", "list"]')


def description_of_another(store, told):
    (store.folder / f"{NAME}.json").write_text(json.dumps({**told, "name": NAME[::-1]}))


def another_format(store, told):
    (store.folder / f"{NAME}.json").write_text(json.dumps({**told, "format": 99}))


@pytest.mark.parametrize(
    "damage",
    [
        truncated_code, other_code, no_code, linked_code, code_elsewhere, truncated_description, empty_description,
        changed_description,
        foreign_description, description_of_another, another_format,
    ],
)  # fmt: skip
def test_damage_is_a_miss_with_one_warning_and_is_replaced(store, code, damage):
    store.put(NAME, {"a": 1}, code)
    damage(store, store.find(NAME))
    with pytest.warns(CacheWarning, match="cannot be used and is removed") as caught:
        for _ in range(3):
            told = store.find(NAME)
            assert told is None or store.code(told) is None
    assert len(caught) == 1
    fresh = Store(store.folder, 10**9)
    assert fresh.put(NAME, {"a": 2}, code) is not None
    assert fresh.code(fresh.find(NAME)).read_bytes() == code.read_bytes()


def test_a_folder_that_others_can_write_is_refused(store, code):
    store.put(NAME, {}, code)
    os.chmod(store.folder, 0o777)
    again = Store(store.folder, 10**9)
    with one_warning("can be written by others"):
        assert again.find(NAME) is None
    assert again.all() == [] and again.family("f" * 24) == [] and again.ledger() == {}
    with one_warning("not kept"):
        assert Store(store.folder, 10**9).put(NAME, {}, code) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_or_file_of_somebody_else_is_refused(store, code):
    path = store.put(NAME, {}, code)
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
            assert store.put(NAME, {}, code) is None
        store.note({"s": {"runs": 1}})
    assert len([w for w in caught if "not kept" in str(w.message)]) == 1


def python(code, *args, **kwargs):
    return subprocess.Popen([sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)], **kwargs)


def test_a_full_disk_costs_one_warning(store, code):
    """Files of this process may have 1,000 bytes: writing the code fails half way, as on a full disk."""
    script = """
        import resource, signal, sys, warnings
        from pathlib import Path
        from gtrace.runtime.store import Store
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        store = Store(Path(sys.argv[1]), 10**9)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert store.put("0123456789abcdef01234567", {}, Path(sys.argv[2])) is None
            assert store.put("0123456789abcdef01234567", {}, Path(sys.argv[2])) is None
        (warning,) = caught
        assert "not kept" in str(warning.message)
        assert store.find("0123456789abcdef01234567") is None
    """
    assert python(script, store.folder, code).wait() == 0
    assert os.listdir(store.folder) == [], "nothing is left of the attempt"


WRITER = """
    import sys
    from pathlib import Path
    from gtrace.runtime.store import Store
    store, name = Store(Path(sys.argv[1]), 10**9), "0123456789abcdef0123456{}"
    code = Path(sys.argv[2])
    print("ready", flush=True)
    for k in range(int(sys.argv[3])):
        code.write_bytes(sys.argv[4].encode() * 20_000)
        store.put(name.format(k % 4), {"by": sys.argv[4]}, code)
        store.note({"s": {"runs": 1}})
        told = store.find(name.format(k % 4))
        assert told is not None and store.code(told) is not None
"""


def test_eight_processes_write_the_same_keys_at_once(store, tmp_path):
    writers = [python(WRITER, store.folder, tmp_path / f"{k}.so", 12, f"w{k}") for k in range(8)]
    assert [w.wait() for w in writers] == [0] * 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known = store.all()
        assert len(known) == 4
        for told in known:
            assert store.code(told).read_bytes() == told["by"].encode() * 20_000
    assert store.ledger()["s"]["runs"] == 8 * 12, "no note is lost"


def test_a_kill_at_any_moment_leaves_what_can_be_read(store, tmp_path):
    r = random.Random(0)
    seen = 0
    for k in range(6):
        writer = python(WRITER, store.folder, tmp_path / "w.so", 10**6, f"w{k}", stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(r.uniform(0, 0.15))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader = Store(store.folder, 10**9)
            for told in reader.all():
                assert reader.code(told).read_bytes() == told["by"].encode() * 20_000
                seen += 1
            reader.note({"s": {"runs": 1}})
    assert seen > 4


def test_the_least_recently_used_goes_first(store, code):
    names = [f"{k:024x}" for k in range(6)]
    for k, name in enumerate(names):
        store.put(name, {}, code)
        os.utime(store.folder / f"{name}.json", (1000 + k, 1000 + k))
    store.code(store.find(names[0]))  # used now
    size = sum(f.stat().st_size for f in store.folder.iterdir())
    assert store.prune(size) == 0
    assert store.prune(size // 2) == 3
    assert [t["name"] for t in store.all()] == [names[4], names[5], names[0]]
    small = Store(store.folder, size // 6 + 100)
    small.put("f" * 24, {}, code)
    assert [t["name"] for t in small.all()] == ["f" * 24], "putting prunes"


def test_the_number_of_artifacts_is_capped(store, code, monkeypatch):
    monkeypatch.setattr(stores, "MAX_FILES", 5)
    for k in range(9):
        store.put(f"{k:024x}", {}, code)
        os.utime(store.folder / f"{k:024x}.json", (1000 + k, 1000 + k))
    assert [int(t["name"], 16) for t in store.all()] == [4, 5, 6, 7, 8]


def test_leftovers_of_killed_processes_go(store, code):
    store.put(NAME, {}, code)
    old = time.time() - 2 * stores.STALE_SECONDS
    for name, age in [("tmp-abc", old), ("tmp-new", None), ("f" * 24 + ".0123.so", old)]:
        (store.folder / name).write_bytes(b"x")
        if age:
            os.utime(store.folder / name, (age, age))
    store.prune()
    assert sorted(os.listdir(store.folder)) == sorted([f"{NAME}.json", store.find(NAME)["file"], "tmp-new"])


def test_the_ledger_adds_numbers_and_replaces_words(store, monkeypatch):
    store.note({"a": {"runs": 1, "seconds": 0.5, "tier": "interpreted"}})
    store.note({"a": {"runs": 1, "seconds": 0.25, "tier": "compiled"}, "b": {"runs": 1}})
    assert store.ledger() == {"a": {"runs": 2, "seconds": 0.75, "tier": "compiled"}, "b": {"runs": 1}}
    monkeypatch.setattr(stores, "MAX_LEDGER", 2)
    store.note({"c": {"runs": 1}})
    assert set(store.ledger()) == {"b", "c"}
    (store.folder / "ledger.json").write_text("{")
    with one_warning("ledger.json cannot be used"):
        assert store.ledger() == {}


def test_clear(store, code):
    store.put(NAME, {}, code)
    assert store.clear() == 1 and not store.folder.exists()
    assert store.put(NAME, {}, code) is not None
