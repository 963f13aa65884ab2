"""The numbers in recorded programs: which of them are constants of a program, and which are inputs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import attrs
import torch

from gtrace.core.base.devices import number_tensor
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.edit import lift_scalars
from gtrace.core.ir.graph import Graph, Scalar

Scalars = tuple[bool | int | float | complex, ...]
"""The scalars of a recording, by slot."""

Groups = Mapping[int, Hashable]
"""The slots of the scalars that are inputs, each with a name. Scalars that were always equal share a name."""

MAX_FORMS = 5
"""How often a program is prepared, each time with more of its scalars as inputs. The last time all are inputs."""


@attrs.frozen(eq=False)
class ScalarInputs:
    """Which scalars of a recorded program are inputs.

    A scalar is a constant of the program until its value changes. Scalars that were equal at each such change are one
    input. An example is a learning rate that changes at each step, and occurs in the update of every parameter. As one
    input, all that is computed from it alone is computed once.

    Attributes:
        groups: the groups of the scalars that are inputs.
        lifted: one scalar of each group, by slot, with its aval. These are the further inputs of the program.
        others, same: the slots of the other scalars of the groups, and for each the slot of the one in `lifted`.
        constants: all other scalars as (slot, value), as they were when the program was prepared.
        values: the values that are no inputs. A recording that was interrupted has some that no operation takes.
        forms: how many forms the program has had, this one included. Each change of a constant adds one.
    """

    groups: Groups
    lifted: tuple[tuple[int, Aval], ...]
    others: tuple[int, ...]
    same: tuple[int, ...]
    constants: tuple[tuple[int, bool | int | float | complex], ...]
    values: Scalars
    forms: int

    def fits(self, scalars: Scalars) -> bool:
        """Whether the constants are unchanged, and the scalars of each group still equal."""
        if not self.groups:
            return scalars == self.values
        if self.others and [scalars[k] for k in self.others] != [scalars[k] for k in self.same]:
            return False
        return tuple([x for k, x in enumerate(scalars) if k not in self.groups]) == self.values

    def changed(self, scalars: Scalars) -> Groups:
        """Return the scalars that become inputs, because constants changed or scalars of a group differ."""
        if self.forms + 1 >= MAX_FORMS:
            return {slot: slot for slot in range(len(scalars))}
        names = {slot: (exact_key(x),) for slot, x in self.constants if scalars[slot] != x} | dict(self.groups)
        numbers: dict[Hashable, int] = {}
        return {
            slot: numbers.setdefault((name, exact_key(scalars[slot])), len(numbers)) for slot, name in names.items()
        }

    def tensors(self, scalars: Scalars) -> list[torch.Tensor]:
        """Return those that are inputs."""
        return [number_tensor(scalars[slot], a.dtype, a.device) for slot, a in self.lifted]


def changed_since(before: Scalars, scalars: Scalars, slots: Sequence[int], groups: Groups) -> Groups:
    """Return the scalars that become inputs of a program that ran once, as it was recorded, with other ones.

    Args:
        slots: of the scalars in the program.
        groups: those that are inputs of a program like it.
    """
    constants = tuple((slot, before[slot]) for slot in slots if slot not in groups)
    return ScalarInputs(groups, (), (), (), constants, (), 0).changed(scalars)


def scalar_inputs(
    graph: Graph, slots: Sequence[int], scalars: Scalars, groups: Groups, forms: int
) -> tuple[Graph, ScalarInputs]:
    """Return a program with some of its scalars as inputs after the others, and which these are.

    Args:
        slots: of the scalars, in order of appearance.
        groups: the scalars that are inputs.
        forms: how many forms the program has had, this one included.
    """
    avals = [x.aval for node in graph.nodes for x in node.ins if isinstance(x, Scalar)]
    places: dict[Hashable, list[int]] = {}
    for place, (slot, a) in enumerate(zip(slots, avals, strict=True)):
        if slot in groups:
            places.setdefault((groups[slot], exact_key(scalars[slot]), a), []).append(place)
    lifted = tuple((slots[group[0]], avals[group[0]]) for group in places.values())
    same = {slots[k]: slots[group[0]] for group in places.values() for k in group[1:] if slots[k] != slots[group[0]]}
    constants = tuple((slot, scalars[slot]) for slot in slots if slot not in groups)
    values = tuple(x for slot, x in enumerate(scalars) if slot not in groups)
    made = ScalarInputs(groups, lifted, tuple(same), tuple(same.values()), constants, values, forms)
    return lift_scalars(graph, places.values()) if places else graph, made
