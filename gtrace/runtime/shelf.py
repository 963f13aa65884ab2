"""Compiled programs beyond this process: asking the worker for them, keeping them, and finding them again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch

from gtrace.config import Config, config
from gtrace.errors import CacheError, CompileError
from gtrace.runtime.artifact import load
from gtrace.runtime.background import Outcome, background
from gtrace.runtime.entry import Entry
from gtrace.runtime.general import General
from gtrace.runtime.plan import Plan, kept_relations, read_constants
from gtrace.runtime.store import Store, default_folder
from gtrace.runtime.toolchain import toolchain
from gtrace.runtime.unit import Made, Unit


@attrs.frozen
class Refusal:
    """Why nothing is to be compiled: an earlier process tried.

    Attributes:
        tier: "failed" or "demoted".
    """

    tier: str
    reason: str


VERDICTS = {"failed": "compiling failed", "demoted": "it was slower", "quarantined": "it was wrong"}
"""Fields of a description that keep an artifact from being used."""

Done = Callable[["dict[str, Made] | CompileError"], None]


class Shelf:
    """The store that the settings name, and the worker that fills it."""

    def __init__(self) -> None:
        self.store: Store | None = None
        config.watch(self._configure)

    def _configure(self, settings: Config) -> None:
        if not settings.background or not settings.cache_size:
            self.store = None
            return
        folder = default_folder() if settings.cache_dir is None else Path(settings.cache_dir).absolute()
        if self.store is None or (self.store.folder, self.store.limit) != (folder, settings.cache_size):
            self.store = Store(folder, settings.cache_size)

    # -- finding

    def find(self, plan: Plan) -> dict[str, Made] | Refusal | None:
        """Return the compiled forms of all units of a plan; None unless all are there."""
        if self.store is None or plan.entry.key.backend != "inductor" or self.store.empty():
            return None
        found: dict[str, Made] = {}
        units = plan.units()
        if not units:  # loops whose bodies are too short to compile
            return None
        for name, unit in units.items():
            made = self._load(name, unit)
            if not isinstance(made, Made):
                return made
            found[unit.name] = made
        return found

    def find_general(self, entry: Entry) -> General | None:
        """Return a program for open sizes that fits an entry, from an earlier process."""
        # what an empty store has not got is not looked for: the names it would be kept under take 2 ms
        if self.store is None or entry.family.closed or self.store.empty():
            return None
        for told in self.store.family(entry.family.name):
            if not VERDICTS.keys().isdisjoint(told) or told["unit"]["threads"] != torch.get_num_threads():
                continue
            relations, constants = kept_relations(told), read_constants(told["constants"])
            general = General(_unloaded, relations, constants, tuple(told["conditions"]))
            if general.fits(entry.shape):
                made = self._load(told["name"], None)
                if isinstance(made, Made):
                    general.program = made.program
                    return general
        return None

    def _load(self, name: str, unit: Unit | None) -> Made | Refusal | None:
        assert self.store is not None
        told = self.store.find(name)
        if told is None:
            return None
        for tier, verb in (
            ("failed", "compiling failed"),
            ("demoted", "it was slower"),
            ("quarantined", "it was wrong"),
        ):
            if tier in told:
                again = f"`gtrace cache retry {told['program']}` tries again"
                return Refusal(
                    "failed" if tier == "failed" else "demoted", f"{verb} in an earlier run: {told[tier]}; {again}"
                )
        path = self.store.code(told)
        if path is None:
            return None
        try:
            return Made(load(path, torch.device(told["device"])), tuple(told["conditions"]))
        except CacheError as error:
            self.store.refuse(name, error)
            return None

    # -- making

    def request(self, plan: Plan, done: Done) -> None:
        """Have those units of a plan compiled that are not there; `done` gets all, or the reason, in another thread."""
        made: dict[str, Made] = {}
        missing = []
        for name, unit in plan.units().items():
            known = None if self.store is None else self._load(name, unit)
            if isinstance(known, Made):
                made[unit.name] = known
            else:
                missing.append((name, unit))

        def next_unit() -> None:
            if not missing:
                done(made)
                return
            name, unit = missing.pop(0)
            background.submit(unit, lambda outcome: received(name, unit, outcome))

        def received(name: str, unit: Unit, outcome: Outcome) -> None:
            result = self._keep(plan, name, unit, outcome)
            if isinstance(result, CompileError):
                done(result)
            else:
                made[unit.name] = result
                next_unit()

        next_unit()

    def _keep(self, plan: Plan, name: str, unit: Unit, outcome: Outcome) -> Made | CompileError:
        """Put what the worker made into the store, and load it."""
        told = _description(plan, unit, outcome)
        if outcome.path is None:
            if self.store is not None and not outcome.passing:
                self.store.put(name, {**told, "failed": outcome.reason})
            return CompileError(outcome.reason)
        path = self.store.put(name, told, outcome.path) if self.store is not None else None
        try:
            return Made(load(path or outcome.path, _device(unit)), outcome.conditions)
        except CacheError as error:
            return CompileError(str(error))

    def amend(self, entry: Entry, **fields: Any) -> None:
        """Note something about the artifacts that an entry runs."""
        if self.store is None:
            return
        if entry.general is None:
            names = list(Plan(entry).units())
        else:
            names = [told["name"] for told in self.store.family(entry.family.name) if _same(told, entry.general)]
        for name in names:
            self.store.amend(name, **fields)


def _same(told: dict[str, Any], general: General) -> bool:
    return kept_relations(told) == general.relations and read_constants(told["constants"]) == general.constants


def _unloaded(tensors: Any) -> list[torch.Tensor]:
    raise AssertionError("the code of this program is not loaded")


def _device(unit: Unit) -> torch.device:
    kinds = [a.device for a in unit.graph.avals if a.device.type != "cpu"]
    return kinds[0] if kinds else torch.device("cpu")


def _description(plan: Plan, unit: Unit, outcome: Outcome) -> dict[str, Any]:
    entry = plan.entry
    return {
        "program": entry.signature.exact,
        "structural": entry.signature.structural,
        "ops": len(unit.graph.nodes),
        "unit": unit.describe(),
        "constants": plan.tell(),
        "conditions": list(outcome.conditions),
        "device": str(_device(unit)),
        "toolchain": toolchain(),
        "compile_seconds": outcome.seconds,
        "created": time.time(),
    }


shelf = Shelf()
"""The shelf of this process."""
