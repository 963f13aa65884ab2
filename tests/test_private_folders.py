"""Code comes from folders that no other user can have written: which folders count, and what happens with others."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import platformdirs
import pytest

import gtrace as gt
from gtrace.core.backends import toolchain as tools
from gtrace.core.backends.inductor.folders import headers_folder, inductor_folder, private_folders
from gtrace.core.base.private_folders import (
    make_cache_folder,
    make_private,
    read_trusted,
    temporary_folder,
    why_untrusted,
)  # fmt: skip
from gtrace.core.base.torch_internals import HEADER_FOLDER
from gtrace.core.runtime.cache.folder import default_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners of folders")

root = pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can give a folder away")


@pytest.mark.parametrize(
    ("above", "mode", "why"),
    [
        (0o755, 0o755, ""), (0o700, 0o500, ""), (0o1777, 0o700, ""),
        (0o777, 0o700, "can be written by others"), (0o775, 0o700, "can be written by others"),
        (0o755, 0o770, "can be written by others"), (0o755, 0o702, "can be written by others"),
        (0o755, 0o1777, "can be written by others"),
    ],
)  # fmt: skip
def test_modes_of_a_folder_and_of_those_above_it(tmp_path, above, mode, why):
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    folder.parent.chmod(above)
    assert why in why_untrusted(folder) and bool(why) == bool(why_untrusted(folder))
    if why:
        with pytest.raises(gt.errors.CacheError, match=why):
            make_private(folder)


@root
@pytest.mark.parametrize("whose", ["above", "above/folder", "link"])
def test_owners_of_folders_and_links(tmp_path, whose):
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to("above/../above/folder")
    assert why_untrusted(tmp_path / "link") == ""
    os.chown(tmp_path / whose, 12345, -1, follow_symlinks=False)
    assert f"{tmp_path / whose} belongs to another user" in why_untrusted(tmp_path / "link")


def test_folders_are_made_for_this_user_alone(tmp_path):
    made = make_private(tmp_path / "a" / "b")
    assert [path.stat().st_mode & 0o777 for path in (made, made.parent)] == [0o700, 0o700]
    with pytest.raises(FileNotFoundError):
        why_untrusted(tmp_path / "none")


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError):
        why_untrusted(tmp_path / "a")


def test_a_temporary_folder_that_others_can_replace_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(gt.errors.CacheError, match="Set TMPDIR to a folder of yours"):
        temporary_folder()
    with gt.config(background=False), pytest.warns(gt.CompileWarning, match="can be written by others"):
        assert gt.jit(lambda x: gt.sin(x) * 0.7131, wait=True)(gt.zeros(3)).tolist() == [0.0] * 3
    tmp_path.chmod(0o1777)
    temporary_folder().rmdir()


def test_a_home_folder_that_cannot_be_used_is_replaced_by_a_private_one(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").touch()
    assert make_cache_folder("inductor") == tmp_path / "tmp" / f"gtrace-{os.geteuid()}" / "inductor"


def test_inductor_never_uses_torchs_folder_in_the_temporary_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for value in (None, str(Path(tempfile.gettempdir(), "torchinductor_somebody"))):
        if value is None:
            monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        else:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", value)
        before = HEADER_FOLDER.get(), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        with private_folders(), private_folders():
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(inductor_folder()) == str(tmp_path / "gtrace/inductor")
            assert HEADER_FOLDER.get() == str(headers_folder())
        assert (HEADER_FOLDER.get(), os.environ.get("TORCHINDUCTOR_CACHE_DIR")) == before


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
def test_folders_that_the_user_chose_are_checked(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tmp_path / "chosen"))
    with private_folders():
        pass
    assert (tmp_path / "chosen").stat().st_mode & 0o777 == 0o700
    (tmp_path / "chosen").chmod(0o777)
    with pytest.raises(gt.errors.CacheError, match=f"{variable} .* can be written by others"), private_folders():
        pass


def test_files_are_read_if_nobody_else_can_have_written_them(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_trusted(tmp_path / "link", links=True) == b"content"
    with pytest.raises(OSError):
        read_trusted(tmp_path / "link")
    (tmp_path / "file").chmod(0o666)
    for folder_mode, file_mode in ((0o777, 0o600), (0o700, 0o666)):
        tmp_path.chmod(folder_mode)
        (tmp_path / "file").chmod(file_mode)
        with pytest.raises(
            gt.ExportError, match=r"can be written by others \(chmod go-w .*\)\. If you trust who made it, copy it"
        ):
            gt.load(tmp_path / "file")


def test_a_processor_with_other_instructions_has_another_key(monkeypatch):
    here = tools._processor_flags()
    tools.instruction_set.cache_clear()
    monkeypatch.setattr(tools, "_processor_flags", lambda: here - {max(here - tools._NOT_INSTRUCTIONS)})
    fewer = tools.instruction_set()
    monkeypatch.undo()
    tools.instruction_set.cache_clear()
    more = tools.instruction_set()
    assert fewer != more and fewer.split()[0] == more.split()[0], "torch has one word for both"
    assert tools.missing_instructions(fewer, more) == [] != tools.missing_instructions(more, fewer)


def test_a_user_without_a_home_folder_has_a_folder(tmp_path, monkeypatch):
    def unknown(*_, **__):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for answer in (unknown, lambda *_, **__: "~/.cache/gtrace"):
        monkeypatch.setattr(platformdirs, "user_cache_dir", answer)
        assert default_folder() == tmp_path / f"gtrace-{os.geteuid()}" / "programs"
