"""The C++ of Inductor's kernels for CPUs, made faster as text.

Along a row, what is the same for all of it is computed for each vector again, square roots and divisions too, because
the compiler cannot know that what is stored is not read. It is moved in front of the loop. A sum is one vector to which
the elements are added, and each addition waits for the one before it, four cycles, where a processor could do eight.
With several such vectors a sum is also more accurate. What does not have the form that is looked for stays as it is.
"""

from __future__ import annotations

import re

from gtrace.core.backends.inductor.tuned import MOST_LINES, SUM_VECTORS
from gtrace.core.base.mechanisms import DIVIDED_SUMS, HOISTED_ROWS, OWN_EXP

_LOOP = re.compile(
    r"(?<!for\n)^(?P<indent> *)for\(int64_t (?P<x>x\d+)=static_cast<int64_t>\(0L\);"
    r" (?P=x)<static_cast<int64_t>\((?P<size>\d+)L\); (?P=x)\+=static_cast<int64_t>\((?P<step>\d+)L\)\)\n"
    r"(?P=indent)\{\n +\{\n"
    r"(?P<inner> +)if\(C10_LIKELY\((?P=x) >= static_cast<int64_t>\(0\) && (?P=x) < static_cast<int64_t>\(\d+L\)\)\)\n"
    r"(?P=inner)\{\n(?P<body>(?:(?P=inner) +\S.*\n)+?)(?P=inner)\}\n"
    r"(?P<rest>(?:(?P=indent) +\S.*\n)*)(?P=indent)\}\n",
    re.MULTILINE,
)

_COMBINED = re.compile(
    r"^ *(?P<name>tmp_acc\d+_vec) = "
    r"(?:(?P=name) (?P<plus>\+) \w+|at::vec::(?P<extreme>maximum|minimum)\((?P=name), \w+\));$"
)

_EXP = re.compile(r"\b(tmp\d+)\.exp\(\)")

_VALUE = re.compile(r"auto (tmp\d+) = ([^{]*);$")

_OTHERS = re.compile(
    r"tmp\d+\.store\((?P<stored>\w+_ptr\d+|local_buffer_data_\d+) \+ [^{]*\);$"
    r"|(?P<element>\w+_ptr\d+|local_buffer_data_\d+)\[.*\] = [^{]*;$|tmp_acc\d+_vec = [^{]*;$"
)
"""Lines that are understood besides those of values: what is stored, and reductions."""

_COLLAPSED = re.compile(r"collapse\((\d+)\)\n(?P<loops>(?: *for\(.*\)\n *\{\n)*)$")

_PARTS = """    {declared}
    for (int64_t first = 0; first < {end}L; first += {stride}L) {{
#pragma GCC unroll {parts}
        for (int part = 0; part < {parts}; ++part) {{
            const int64_t {x} = first + part * {step}L;
{body}        }}
    }}
    {combined}
"""


def faster(kernels: str) -> str:
    """Return the C++ of kernels with less work along rows, several vectors for each reduction, and our own exp."""
    kernels = _LOOP.sub(_rewritten, kernels)
    if not OWN_EXP.on:
        return kernels
    text, count = _EXP.subn(r"gtrace_exp(\1)", kernels)
    if count:
        OWN_EXP.used()
    return text


def _rewritten(loop: re.Match[str]) -> str:
    outer = _COLLAPSED.search(loop.string, max(0, loop.start() - 1000), loop.start())
    if outer and outer["loops"].count("for(") < int(outer[1]):
        return loop.group()  # nothing may stand between these loops
    fixed, body = _without_fixed(loop["body"], loop["x"]) if HOISTED_ROWS.on else ("", loop["body"])
    size, step = int(loop["size"]), int(loop["step"])
    divided, end = _divided(body, loop["x"], size, step) if DIVIDED_SUMS.on else ("", 0)
    if fixed:
        HOISTED_ROWS.used()
    if divided:
        DIVIDED_SUMS.used()
    if not fixed and not divided:
        return loop.group()
    text = loop.group().replace(loop["body"], body, 1) if end < int(loop["size"]) else ""
    rest = text.replace("=static_cast<int64_t>(0L);", f"=static_cast<int64_t>({end}L);", 1)
    return f"{{\n{fixed}{divided}{rest}}}\n"


def _without_fixed(body: str, x: str) -> tuple[str, str]:
    """Return what is the same in all iterations of a loop, and the rest of its body."""
    lines = [line.strip() for line in body.splitlines()]
    values = [_VALUE.match(line) for line in lines]
    others = [_OTHERS.match(line) for line, value in zip(lines, values, strict=True) if value is None]
    if None in others:
        return "", body
    stored = {found["stored"] or found["element"] for found in others if found}
    if any("in_out" in str(name) for name in stored):
        return "", body  # which has other names too
    known: set[str] = set()
    fixed, rest = [], []
    for line, value in zip(lines, values, strict=True):
        names = set(re.findall(r"\w+", value[2])) if value else set()
        changing = {name for name in names if name.startswith("tmp")} - known | names & {x, *stored}
        if value is None or changing or any("in_out" in name for name in names):
            rest.append(line + "\n")
        else:
            known.add(value[1])
            fixed.append(line + "\n")
    return "".join(fixed), "".join(rest)


def _divided(body: str, x: str, size: int, step: int) -> tuple[str, int]:
    """Return a loop with several vectors for each reduction, and where it ends."""
    lines = body.splitlines()
    reductions = [_COMBINED.match(line) for line in lines if "tmp_acc" in line]
    end = size // (SUM_VECTORS * step) * (SUM_VECTORS * step)
    if not reductions or None in reductions or not end or len(lines) > MOST_LINES or "for(" in body:
        return "", 0
    declared, combined = [], []
    for found in filter(None, reductions):
        name, parts = found["name"], found["name"] + "_parts"
        if body.count(name) != 2:
            return "", 0  # its value is used besides
        start = f"decltype({name})(0)" if found["plus"] else name
        declared.append(
            f"decltype({name}) {parts}[{SUM_VECTORS}] = {{{', '.join([name, *[start] * (SUM_VECTORS - 1)])}}};"
        )
        template = "({} + {})" if found["plus"] else f"at::vec::{found['extreme']}({{}}, {{}})"
        sides = [template.format(f"{parts}[{k}]", f"{parts}[{k + 1}]") for k in range(0, SUM_VECTORS, 2)]
        combined.append(f"{name} = {template.format(*sides)};")
        body = re.sub(rf"\b{name}\b", f"{parts}[part]", body)
    text = _PARTS.format(
        declared="\n    ".join(declared), combined="\n    ".join(combined), end=end, stride=SUM_VECTORS * step,
        parts=SUM_VECTORS, x=x, step=step, body=body,
    )  # fmt: skip
    return text, end
