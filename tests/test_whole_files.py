"""Files are whole or not there, and archives are checked before anything is unpacked."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import stat
import struct
import zipfile

import pytest

import gtrace as gt
from gtrace.commands.visualize import visualize
from gtrace.core.base import archives, json_fields
from gtrace.core.base.archives import Archive, write_archive
from gtrace.core.base.whole_files import write_aside, write_text

FILES = [("model/data/a.so", b"\x7fELF" + bytes(3000)), ("model/version", b"3"), ("empty", b"")]


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "files.zip"
    write_archive(path, FILES)
    return path


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_any_step_leaves_the_old_file(tmp_path, monkeypatch, call, code):
    path = tmp_path / "file"
    write_text(path, "old")

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match=os.strerror(code)):
            write_text(path, "new")
    assert os.listdir(tmp_path) == ["file"] and path.read_text() == "old"


def test_an_error_names_the_file_that_the_user_knows(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        write_text(tmp_path / "nothing" / "file", "x")
    assert raised.value.filename == str(tmp_path / "nothing" / "file")


def test_a_link_is_replaced_and_a_pipe_is_refused(tmp_path):
    other, link, pipe = tmp_path / "other", tmp_path / "link", tmp_path / "pipe"
    other.write_text("of another")
    link.symlink_to(other)
    write_text(link, "ours")
    assert (other.read_text(), link.read_text(), link.is_symlink()) == ("of another", "ours", False)
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(OSError, match="no plain file"):
            write_text(path, "x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("suffix", ["html", "json", "svg"])
def test_pictures_of_logs_follow_no_link(tmp_path, suffix):
    if suffix == "svg":
        pytest.importorskip("matplotlib")
    log, other, link = tmp_path / "log", tmp_path / "other", tmp_path / f"page.{suffix}"
    with gt.config(instruction_log=str(log)):
        gt.eval(gt.sin(gt.ones(3)))
    other.write_text("of another")
    link.symlink_to(other)
    assert visualize([str(log)], str(link)) == 0
    assert other.read_text() == "of another" and not link.is_symlink() and link.stat().st_size > 100
    assert sorted(os.listdir(tmp_path)) == ["log", "other", link.name]


def test_what_is_written_is_read(archive):
    for source in (archive, archive.read_bytes()):
        with Archive(source) as found:
            assert [(name, found.read(name)) for name in found.sizes] == FILES
            with pytest.raises(ValueError, match="more than 10 B"):
                found.read("model/data/a.so", 10)
            with pytest.raises(ValueError, match="no file 'b'"):
                found.read("b")


def made(path, *entries):
    """Return an archive of entries (name, content, change): `change` is called with the entry's ZipInfo."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content, change in entries:
            info = zipfile.ZipInfo(name)
            change(info)
            archive.writestr(info, content)
    return path


def nothing(info):
    pass


def mode(kind):
    return lambda info: setattr(info, "external_attr", (kind | 0o644) << 16)


def method(number):
    return lambda info: setattr(info, "compress_type", number)


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/x", "a//x", "./x", "a/", "..", "a\\x", "C:x", "model/data/aotinductor/model/../../../x"],
)
def test_names_that_lead_outside_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="no name of a file inside"):
        Archive(made(tmp_path / "a", ("good", "x", nothing), (name, "x", nothing)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (mode(stat.S_IFLNK), "no plain file"), (mode(stat.S_IFIFO), "no plain file"), (mode(stat.S_IFDIR), "no plain"),
        (method(zipfile.ZIP_BZIP2), "compressed in a way"), (method(zipfile.ZIP_LZMA), "compressed in a way"),
    ],
)  # fmt: skip
def test_other_kinds_of_entries_are_refused(tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        Archive(made(tmp_path / "a", ("x", "content", change)))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_place_are_refused(tmp_path):
    with pytest.raises(ValueError, match="have one name"):
        Archive(made(tmp_path / "a", ("x", "1", nothing), ("x", "2", nothing)))
    with pytest.raises(ValueError, match="inside of what is a file"):
        Archive(made(tmp_path / "a", ("x", "1", nothing), ("x/y", "2", nothing)))


def test_sizes_and_counts_are_bounded(tmp_path, monkeypatch):
    path = made(tmp_path / "a", *((f"{k}", bytes(10_000), method(zipfile.ZIP_DEFLATED)) for k in range(3)))
    monkeypatch.setattr(archives, "MAX_INFLATED", 29_999)
    with pytest.raises(ValueError, match=r"grow to 29\.3 KiB, more than"):
        Archive(path)
    monkeypatch.setattr(archives, "MAX_FILES", 2)
    with pytest.raises(ValueError, match="3 files, more than 2"):
        Archive(path)
    monkeypatch.undo()
    # a file that states a size which it does not have
    content = bytearray(made(tmp_path / "b", ("x", bytes(100), nothing)).read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = struct.pack("<I", 1 << 31)
    with pytest.raises(ValueError, match="larger than it is"):
        Archive(bytes(content))


def test_large_files_are_not_compressed_so_that_they_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_INFLATED", 10_000)
    write_archive(tmp_path / "a", [(f"{k}", bytes(3_000)) for k in range(9)])
    with Archive(tmp_path / "a") as found:
        assert all(found.read(name) == bytes(3_000) for name in found.sizes) and len(found.sizes) == 9


def test_no_damage_gives_another_error(archive):
    rng, whole, refused = random.Random(0), archive.read_bytes(), 0
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        try:
            with Archive(bytes(content[: rng.choice([None, rng.randrange(len(content))])])) as found:
                for name in found.sizes:
                    found.read(name)
        except ValueError:
            refused += 1
    assert refused > 200


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "f.gtx"
    gt.export(lambda v: gt.sin(v) * 2, gt.ones(3)).save(path)
    return path


def repacked(path, new, change):
    """Write an exported function whose package `change` has made from its files, with the hash that fits."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    (case,) = manifest["cases"]
    inner = new.with_name("inner.pt2")
    inner.write_bytes(files[case["file"]])
    with zipfile.ZipFile(inner) as archive:
        entries = [(name, archive.read(name), nothing) for name in archive.namelist()]
    files[case["file"]] = made(inner, *change(entries)).read_bytes()
    case["sha256"] = hashlib.sha256(files[case["file"]]).hexdigest()
    del manifest["checksum"]
    files["manifest.json"] = json.dumps(json_fields.with_checksum(manifest)).encode()
    return made(new, *((name, content, nothing) for name, content in files.items()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["outside", "absolute", "link", "large", "same"])
def test_a_package_inside_of_an_exported_function(exported, tmp_path, kind, monkeypatch):
    outside = tmp_path / "outside"
    folder = "model/data/aotinductor/model/"
    added = {
        "outside": (f"{folder}{'../' * 14}{str(outside)[1:]}", "x", nothing),
        "absolute": (f"{folder}/{outside}", "x", nothing),
        "link": (f"{folder}link", str(outside), mode(stat.S_IFLNK)),
        "large": (f"{folder}large.so", bytes(10_000_000), method(zipfile.ZIP_DEFLATED)),
        "same": (f"{folder}notes.txt", "x", nothing),
    }
    if kind == "large":
        monkeypatch.setattr(archives, "MAX_INFLATED", 9_000_000)
    path = repacked(exported, tmp_path / "f.gtx", lambda entries: [*entries, added[kind]])
    if kind == "same":
        assert float(gt.load(path)(gt.zeros(3)).sum()) == 0
        return
    with pytest.raises(gt.ExportError, match="Export the function again"):
        gt.load(path)
    assert not outside.exists()


@pytest.mark.slow
def test_a_package_is_written_aside(exported, tmp_path):
    other, link = tmp_path / "other", tmp_path / "f.pt2"
    other.write_text("of another")
    link.symlink_to(other)
    gt.load(exported).save_package(link)
    assert other.read_text() == "of another" and zipfile.is_zipfile(link) and not link.is_symlink()
    with pytest.raises(OSError, match="no plain file"):
        gt.load(exported).save_package(tmp_path)


def test_a_write_that_raises_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write_aside(tmp_path / "file", lambda aside: aside.write_text("x") / 0)
    assert not os.listdir(tmp_path)
