"""``gtrace cache``: lists, explains, moves and removes compiled programs on disk."""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base.archives import MAX_TEXT, Archive, write_archive
from gtrace.core.base.config import Config
from gtrace.core.base.errors import CacheError, ConfigError, GtraceError
from gtrace.core.base.private_folders import read_trusted
from gtrace.core.base.units import bytes_text, duration_text, printable
from gtrace.core.base.whole_files import write_aside
from gtrace.core.base.workspace import workspace
from gtrace.core.ir.signature import matching, short
from gtrace.core.runtime.cache import folder as folders
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.cache.manifest import Manifest
from gtrace.core.runtime.cache.store import Store

_NAME = re.compile(r"(?:[0-9a-f]{24}-)?[0-9a-f]{24}")

_DAMAGED = (ValueError, KeyError, RuntimeError, OverflowError, GtraceError)
"""Exceptions from reading a damaged artifact."""


def add_parser(commands: Any) -> None:
    """Add the command and its own commands."""
    parser = commands.add_parser("cache", help="list, explain, move and remove what is compiled on disk")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="every artifact, the latest used last")
    for name, text in (
        ("show", "all that is known of a signature"),
        ("why", "what keeps the artifacts of a signature from being used here"),
        ("retry", "forget that a signature failed, was slower or was wrong; without one: of all"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("signature", metavar="SIG", nargs="?" if name == "retry" else None,
                            help="a signature as gt.stats() shows it, or its beginning")  # fmt: skip
    action = actions.add_parser("prune", help="remove the least recently used artifacts")
    action.add_argument("--to", metavar="SIZE", help="bytes that may stay, such as 500MB (default: GT_CACHE_SIZE)")
    actions.add_parser("clear", help="remove everything")
    for name, text in (("export", "write all artifacts to a file"), ("import", "add the artifacts of such a file")):
        action = actions.add_parser(name, help=text)
        action.add_argument("file", metavar="FILE")


def command(options: argparse.Namespace) -> int:
    """Run one of the commands; return the exit code."""
    store = artifacts.store
    if store is None:
        print("gtrace cache: nothing is kept on disk while GT_CACHE_SIZE or GT_BACKGROUND is 0.", file=sys.stderr)
        return 2
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
    match options.action:
        case "list":
            return _list(store, console)
        case "show" | "why" | "retry":
            return _about(store, console, options.action, options.signature)
        case "prune":
            return _prune(store, options.to)
        case "clear":
            return _clear(store)
        case "export":
            return _export(store, Path(options.file))
        case _:
            return _import(store, Path(options.file))


def _list(store: Store, console: Console) -> int:
    table = Table()
    for name in ("signature", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("ops", "size", "compiled in", "used"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    known = store.all()
    for manifest in known:
        table.add_row(
            short(manifest.program), "exact" if manifest.relations is None else "open sizes", str(manifest.ops),
            bytes_text(manifest.size), duration_text(manifest.compile_seconds), f"{_age(store, manifest)} ago",
            Text(printable(_state(manifest))),
        )  # fmt: skip
    if known:
        console.print(table)
    print(f"{_count(len(known))}, {bytes_text(sum(m.size for m in known))} in {printable(str(store.folder))}")
    return 0


def _state(manifest: Manifest) -> str:
    if manifest.verdict is not None:
        return str(manifest.verdict)
    changed = _changed(manifest)
    return f"not used here: other {', '.join(changed)}" if changed else "ready"


def _changed(manifest: Manifest) -> dict[str, tuple[str, str]]:
    """Return the fields of the key in which an artifact differs from what this machine would use."""
    here = {**toolchain(), "threads": str(torch.get_num_threads())}
    there = {**manifest.toolchain, "threads": str(manifest.threads)}
    return {k: (there.get(k, ""), here[k]) for k in here if there.get(k) != here[k]}


def _about(store: Store, console: Console, action: str, signature: str | None) -> int:
    known, ledger = store.all(), store.ledger()
    if signature is not None:
        found = matching(signature, [*(manifest.program for manifest in known), *ledger])
        if len(found) != 1:
            expected, fix = "a known signature", "`gtrace cache list` lists them."
            if found:
                expected, fix = "the beginning of one signature", f"{len(found)} begin so: give more digits."
            print(f"gtrace cache {action}: expected {expected}, got {signature!r}. {fix}", file=sys.stderr)
            return 2
        known = [manifest for manifest in known if manifest.program == found[0]]
        ledger = {k: v for k, v in ledger.items() if k == found[0]}
    if action == "retry":
        again = [manifest for manifest in known if manifest.verdict is not None]
        for manifest in again:
            store.remove(manifest.name)
        print(f"{_count(len(again))} will be compiled again when hot")
        try:
            rewritten = store.forget_table(folders.WRONG) if signature is None else 0
        except OSError as error:
            print(printable(f"gtrace cache retry: {store.folder} cannot be written: {error}."), file=sys.stderr)
            return 2
        if rewritten:
            print(f"{rewritten} programs that were rewritten into wrong ones will be rewritten again")
        return 0
    if action == "why":
        return _why(store, known, ledger)

    def say(text: str) -> None:
        console.print(printable(text), markup=False)

    for manifest in known:
        say(f"{short(manifest.program)}  {manifest.name}: {_state(manifest)}")
        strides = [list(s) for s in manifest.strides]
        say(f"  {manifest.ops} operations, mode {manifest.mode}, strides {strides}")
        for field, value in manifest.toolchain.items():
            say(f"  {field}: {value}")
        for text in manifest.graph.splitlines():
            say(text)
    for name, line in ledger.items():
        numbers = ", ".join(f"{k} {_short(v)}" for k, v in attrs.asdict(line).items())
        say(f"{short(name)} in earlier runs: {numbers}")
    return 0


def _why(store: Store, known: list[Manifest], ledger: dict[str, LedgerEntry]) -> int:
    for manifest in known:
        reasons = []
        if manifest.verdict is not None:
            reasons.append(f"{manifest.verdict.kind.meaning}: {manifest.verdict.reason}")
        reasons += [f"{field} was {old}, now {new}" for field, (old, new) in _changed(manifest).items()]
        if not reasons and store.code(manifest) is None:
            reasons = ["its code is damaged"]
        text = "; ".join(reasons) if reasons else "nothing: it is used by programs of this structure, sizes and strides"
        print(printable(f"{short(manifest.program)} {manifest.name}: {text}"))
    for name, line in ledger.items() if not known else ():
        spent = duration_text(line.interpreted_seconds)
        times = f"{spent} spent interpreting it in {line.runs} runs"
        print(printable(f"{short(name)}: it was never compiled here; {times}"))
    return 0


def _prune(store: Store, size: str | None) -> int:
    limit = None
    if size is not None:
        try:
            limit = Config().replaced({"cache_size": size}).cache_size
        except ConfigError as error:
            print(f"gtrace cache prune: {error}", file=sys.stderr)
            return 2
    _say_removed(store.prune(limit), store.folder)
    return 0


def _clear(store: Store) -> int:
    folder = store.folder
    try:
        gone = store.clear()
    except OSError as error:
        print(printable(f"gtrace cache clear: {folder} cannot be cleared: {error}."), file=sys.stderr)
        return 2
    _say_removed(gone, folder)
    return 0


def _say_removed(gone: folders.Removed, folder: Path) -> None:
    where = printable(str(folder))
    print(f"removed {_count(gone.artifacts)}: {gone.files} files, {bytes_text(gone.size)} in {where}")
    others = folders.count_foreign(folder)
    if others:
        print(f"left {others} files and folders in {where} that gtrace did not make")


def _export(store: Store, file: Path) -> int:
    count = 0

    def files() -> Iterator[tuple[str, bytes]]:
        nonlocal count
        for manifest in store.all():
            path = None if manifest.code is None else store.code(manifest)
            if path is not None:
                yield folders.manifest_file(manifest.name), manifest.to_json().encode()
                yield path.name, path.read_bytes()
                count += 1

    try:
        write_aside(file, lambda aside: write_archive(aside, files()))
    except OSError as error:
        print(printable(f"gtrace cache export: {file} cannot be written: {error.strerror}."), file=sys.stderr)
        return 2
    print(f"wrote {_count(count)} to {printable(str(file))}")
    return 0


def _import(store: Store, file: Path) -> int:
    """Add what another store exported: native code, which is run. Each artifact is verified against its manifest."""
    added, refused = 0, []
    try:
        content = read_trusted(file, links=True)
    except CacheError as error:
        text = f"{error}. If you trust who made it, copy it to a folder of yours."
        print(printable(f"gtrace cache import: {text}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(printable(f"gtrace cache import: {file} cannot be read: {error}."), file=sys.stderr)
        return 2
    try:
        with Archive(content) as archive, workspace() as folder:
            for entry in (name for name in archive.sizes if name.endswith(".json")):
                try:
                    manifest = Manifest.from_json(archive.read(entry, MAX_TEXT))
                    if manifest.code is None:
                        raise ValueError("it has no code")
                    content = archive.read(manifest.code.file)
                    _verify(entry, manifest, content)
                except _DAMAGED as error:
                    refused.append(printable(f"{entry}: {error}"))
                    continue
                code = folder / f"code{Path(manifest.code.file).suffix}"
                code.write_bytes(content)
                if store.put(manifest, code) is None:
                    return 1
                added += 1
    except (OSError, *_DAMAGED) as error:
        got = printable(f"{file}: {error}")
        print(f"gtrace cache import: expected a file that `gtrace cache export` wrote, got {got}.", file=sys.stderr)
        return 2
    print(f"added {_count(added)}")
    for text in refused:
        print(f"refused {text}", file=sys.stderr)
    return int(bool(refused))


def _verify(entry: str, manifest: Manifest, content: bytes) -> None:
    """Check that an artifact's code and manifest match its name.

    Raises:
        ValueError: it is not.
        GraphError: its graph is none.
    """
    if entry != folders.manifest_file(manifest.name) or not _NAME.fullmatch(manifest.name):
        raise ValueError("its name is not one of this gtrace's")
    code = manifest.code
    if code is None or hashlib.sha256(content).hexdigest() != code.sha256 or Path(code.file).suffix not in folders.CODE:
        raise ValueError("its code is not what was exported")
    if manifest.request().named(manifest.toolchain) != manifest.name.rpartition("-")[2]:
        raise ValueError("its manifest is not that of its name")


def _age(store: Store, manifest: Manifest) -> str:
    return duration_text(max(time.time() - store.used(manifest), 0.0))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count(n: int) -> str:
    return f"{n} artifact{'' if n == 1 else 's'}"
