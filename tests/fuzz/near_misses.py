"""Changes that make a program nearly what a rewrite looks for, and the smallest program that still fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import attrs

from fuzz.programs import Program

# not exponents: torch computes x ** -0.5 as a root, which differs from the power at -0.0 and -inf
NUMBER = re.compile(r"(?<!\*\* )(?<![\w.'])\d+\.\d+(?:e-?\d+)?(?![\w'])")


def _assigned(line: str) -> tuple[str, str]:
    name, _, expression = line.partition(" = ")
    return name, expression


def changed(r: Random, program: Program) -> Program:
    """Return a program with one thing changed: it may be one that torch refuses."""
    lines, outputs = list(program.lines), list(program.outputs)
    names = [_assigned(line)[0] for line in lines]
    k = r.randrange(len(lines))
    name, expression = _assigned(lines[k])
    kind = r.choice(["extra use", "extra term", "sign", "number", "factor", "selection", "operand", "comparison"])
    floats = [x.name for x in program.inputs if x.is_float]
    if kind == "extra use" and names[k] not in outputs:
        outputs.append(name)
    elif kind == "extra term":
        lines[k] = f"{name} = ({expression}) {r.choice('+-')} {r.choice(['0.25', '1.0', *floats, *names[:k]])}"
    elif kind == "factor":
        lines[k] = f"{name} = ({expression}) * {r.choice(['-1.0', '2.0', '0.0', *floats, *names[:k]])}"
    elif kind == "sign" and " + " in expression:
        lines[k] = f"{name} = {expression.replace(' + ', ' - ', 1)}"
    elif kind == "number":
        found = NUMBER.findall(expression)
        if found:
            lines[k] = f"{name} = {expression.replace(r.choice(found), r.choice(['-0.5', '1.0', '3.0', '1e-7']), 1)}"
    elif kind == "selection":
        lines.insert(
            k + 1, f"{name}s = m.where({name} > {r.choice(['0.0', '0.3'])}, {name}, {r.choice(['0.0', '-2.0', name])})"
        )
        outputs = [f"{name}s" if one == name else one for one in outputs]
        lines[k + 2 :] = [re.sub(rf"\b{name}\b", f"{name}s", line) for line in lines[k + 2 :]]
    elif kind == "operand" and k:
        used = [one for one in names[:k] if re.search(rf"\b{one}\b", expression)]
        if used:
            lines[k] = f"{name} = " + re.sub(
                rf"\b{r.choice(used)}\b", r.choice([*floats, *names[:k]]), expression, count=1
            )
    elif kind == "comparison":
        outputs.append(f"({name} {r.choice(['==', '>', '<='])} {r.choice(['0.0', '0.5', '1.0'])})")
    return attrs.evolve(program, lines=tuple(lines), outputs=tuple(outputs))


def smallest(program: Program, fails: Callable[[Program], bool], tries: int = 200) -> Program:
    """Return the smallest program that still fails, found by leaving out results, lines and inputs."""
    for candidate in (attrs.evolve(program, way="value"), attrs.evolve(program, way="grad")):
        if program.way not in ("value", candidate.way) and fails(candidate):
            program = candidate
            break
    again = True
    while again and tries > 0:
        again = False
        for candidate in _smaller(program):
            tries -= 1
            if fails(candidate):
                program, again = candidate, True
                break
            if tries <= 0:
                break
    return program


def _smaller(program: Program) -> list[Program]:
    found = []
    if len(program.outputs) > max(program.carry, 1):
        for k in range(program.carry, len(program.outputs)):
            outputs = (*program.outputs[:k], *program.outputs[k + 1 :])
            found.append(attrs.evolve(program, outputs=outputs))
    if program.calls > 1:
        found.append(attrs.evolve(program, calls=program.calls - 1))
    text = program.text()
    for k, line in enumerate(program.lines):
        name, expression = _assigned(line)
        rest = (*program.lines[:k], *program.lines[k + 1 :])
        if len(re.findall(rf"\b{name}\b", text)) == 1:
            return [attrs.evolve(program, lines=rest)]
        operands = dict.fromkeys(re.findall(r"\b(?:v\d+s?|[a-z])\b", expression))
        for operand in [one for one in operands if one not in ("m", name)]:
            swap = re.compile(rf"\b{name}\b")
            later = tuple(swap.sub(operand, one) for one in program.lines[k + 1 :])
            outputs = tuple(swap.sub(operand, one) for one in program.outputs)
            found.append(attrs.evolve(program, lines=(*program.lines[:k], *later), outputs=outputs))
    unused = [x for x in program.inputs if not re.search(rf"\b{x.name}\b", text.partition("\n")[2])]
    if unused and not program.carry:
        found.append(attrs.evolve(program, inputs=tuple(x for x in program.inputs if x not in unused)))
    return found
