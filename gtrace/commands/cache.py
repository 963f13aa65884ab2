"""``gtrace cache``: what is kept on disk, why something is not used, and how to move or remove it."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gtrace.config import Config
from gtrace.errors import ConfigError, GtraceError
from gtrace.observe.stats import duration
from gtrace.runtime.shelf import VERDICTS, shelf
from gtrace.runtime.store import FORMAT, Store, seal
from gtrace.runtime.toolchain import toolchain
from gtrace.runtime.unit import Unit

_NAME = re.compile(r"(?:[0-9a-f]{24}-)?[0-9a-f]{24}")


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
    """Run one of the commands; returns the exit code."""
    store = shelf.store
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
            print(f"removed {_count(store.clear())}")
            return 0
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
    for told in known:
        table.add_row(
            told["program"], "open sizes" if told["unit"]["relations"] else "exact", str(told["ops"]),
            f"{told.get('bytes', 0) / 2**20:.1f} MiB", duration(told["compile_seconds"]), f"{_age(store, told)} ago",
            _state(told),
        )  # fmt: skip
    if known:
        console.print(table)
    print(f"{_count(len(known))}, {sum(t.get('bytes', 0) for t in known) / 2**20:.1f} MiB in {store.folder}")
    return 0


def _state(told: dict[str, Any]) -> str:
    for field in VERDICTS:
        if field in told:
            return f"{field}: {told[field]}"
    changed = _changed(told)
    return f"not used here: other {', '.join(changed)}" if changed else "ready"


def _changed(told: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the fields of the key in which an artifact differs from what this machine would use."""
    here = {**toolchain(), "threads": str(torch.get_num_threads())}
    there = {**told["toolchain"], "threads": str(told["unit"]["threads"])}
    return {k: (there.get(k, ""), here[k]) for k in here if there.get(k) != here[k]}


def _about(store: Store, console: Console, action: str, signature: str | None) -> int:
    known = [told for told in store.all() if told["program"].startswith(signature or "")]
    if action == "retry":
        again = [told for told in known if not VERDICTS.keys().isdisjoint(told)]
        for told in again:
            store.remove(told["name"])
        print(f"{_count(len(again))} will be compiled again when hot")
        return 0
    ledger = {k: v for k, v in store.ledger().items() if k.startswith(signature or "")}
    if not known and not ledger:
        print(f"gtrace cache {action}: expected a known signature, got {signature!r}. `gtrace cache list` lists them.",
              file=sys.stderr)  # fmt: skip
        return 2
    if action == "why":
        return _why(store, known, ledger)
    for told in known:
        console.print(f"{told['program']}  {told['name']}: {_state(told)}", markup=False)
        console.print(
            f"  {told['ops']} operations, mode {told['unit']['mode']}, strides {told['unit']['strides']}", markup=False
        )
        for field, value in told["toolchain"].items():
            console.print(f"  {field}: {value}", markup=False)
        console.print(told["unit"]["graph"], markup=False)
    for name, line in ledger.items():
        console.print(
            f"{name} in earlier runs: " + ", ".join(f"{k} {_short(v)}" for k, v in line.items()), markup=False
        )
    return 0


def _why(store: Store, known: list[dict[str, Any]], ledger: dict[str, dict[str, Any]]) -> int:
    for told in known:
        reasons = [f"{VERDICTS[field]}: {told[field]}" for field in VERDICTS if field in told]
        reasons += [f"{field} was {old}, now {new}" for field, (old, new) in _changed(told).items()]
        if not reasons and store.code(told) is None:
            reasons = ["its code is damaged"]
        text = "; ".join(reasons) if reasons else "nothing: it is used by programs of this structure, sizes and strides"
        print(f"{told['program']} {told['name']}: {text}")
    for name in ledger if not known else ():
        line = ledger[name]
        spent = duration(line.get("interpreted_seconds", 0.0))
        print(f"{name}: it was never compiled here; {spent} spent interpreting it in {line.get('runs', 0)} runs")
    return 0


def _prune(store: Store, size: str | None) -> int:
    limit = None
    if size is not None:
        try:
            limit = Config().replaced({"cache_size": size}).cache_size
        except ConfigError as error:
            print(f"gtrace cache prune: {error}", file=sys.stderr)
            return 2
    print(f"removed {_count(store.prune(limit))}")
    return 0


def _export(store: Store, file: Path) -> int:
    count = 0
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for told in store.all():
                path = store.code(told) if "file" in told else None
                if path is not None:
                    archive.writestr(f"{told['name']}.json", json.dumps(told))
                    archive.write(path, told["file"])
                    count += 1
    except OSError as error:
        print(f"gtrace cache export: {file} cannot be written: {error.strerror}.", file=sys.stderr)
        return 2
    print(f"wrote {_count(count)} to {file}")
    return 0


def _import(store: Store, file: Path) -> int:
    """Add what another store exported: native code, which is run. Each artifact is verified against its description."""
    added, refused = 0, []
    try:
        with zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory() as folder:
            for entry in (name for name in archive.namelist() if name.endswith(".json")):
                try:
                    told = json.loads(archive.read(entry))
                    content = archive.read(told["file"])
                    _verify(entry, told, content)
                except (ValueError, KeyError, TypeError, GtraceError) as error:
                    refused.append(f"{entry}: {error}")
                    continue
                code = Path(folder) / f"code{Path(told['file']).suffix}"
                code.write_bytes(content)
                rest = {k: v for k, v in told.items() if k not in ("file", "bytes", "sha256")}
                if store.put(told["name"], rest, code) is None:
                    return 1
                added += 1
    except (OSError, zipfile.BadZipFile) as error:
        print(
            f"gtrace cache import: expected a file that `gtrace cache export` wrote, got {file}: {error}.",
            file=sys.stderr,
        )
        return 2
    print(f"added {_count(added)}")
    for text in refused:
        print(f"refused {text}", file=sys.stderr)
    return int(bool(refused))


def _verify(entry: str, told: dict[str, Any], content: bytes) -> None:
    """Check that an artifact is what its name says.

    Raises:
        ValueError: it is not.
    """
    name = told["name"]
    if told["format"] != FORMAT or entry != f"{name}.json" or not _NAME.fullmatch(name):
        raise ValueError("its name or format is not one of this gtrace's")
    if told["seal"] != seal(told):
        raise ValueError("its description is not what was exported")
    if hashlib.sha256(content).hexdigest() != told["sha256"] or Path(told["file"]).suffix not in (".so", ".pt2"):
        raise ValueError("its code is not what was exported")
    unit = Unit.read(told["unit"])
    if unit.named(told["toolchain"]) != name.rpartition("-")[2]:
        raise ValueError("its description is not that of its name")


def _age(store: Store, told: dict[str, Any]) -> str:
    return duration(max(time.time() - (store.folder / f"{told['name']}.json").stat().st_mtime, 0.0))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count(n: int) -> str:
    return f"{n} artifact{'' if n == 1 else 's'}"
