"""What the site adds to Sphinx: docstrings as they are written, links from code to the reference, figures inline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from reference import contents, descriptions, escape
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"(?:gt|gtrace)(\.[A-Za-z_][\w.]*)(?:\(\))?")
ANY = r"(?:~?typing\.)?Any"


def docstring(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Escape what reStructuredText would take for markup; only backticks and examples mean anything in a docstring."""
    done: list[str] = []
    text, example = "", False
    for line in [*lines, ">>>"]:
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if example:
            done.extend(escape(text).splitlines())
            done.append(line)
            text = ""
        else:
            text += line + "\n"
    lines[:] = done[:-1]


def signature(
    app: Sphinx, what: str, name: str, obj: object, options: Any, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Leave out the type Any, which says nothing."""
    if arguments:
        arguments = re.sub(rf"Callable\[\[\.\.\.\], {ANY}\]", "Callable", arguments)
        arguments = re.sub(rf": {ANY}(?: = |(?=[,)]))", lambda found: "=" if "=" in found[0] else "", arguments)
    if result:
        result = re.sub(rf"Callable\[\[\.\.\.\], {ANY}\]", "Callable", result)
    return arguments, None if result and re.fullmatch(ANY, result) else result


def skipped(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples, which the docstring of the class describes."""
    return True if type(obj).__name__ == "_tuplegetter" else None


class CodeLinks(SphinxPostTransform):
    """Makes a link of each public name that is written as code, such as ``gt.vmap``."""

    default_priority = 400

    def run(self, **kwargs: Any) -> None:
        described = self.app.config.described_names
        known = self.env.get_domain("py").objects
        for node in list(self.document.findall(nodes.literal)):
            match = NAME.fullmatch(node.astext())
            inert = isinstance(node.parent, nodes.reference | nodes.title) or "aliases" in node.parent["classes"]
            if match is None or inert:
                continue
            name = described.get("gtrace" + match[1], "gtrace" + match[1])
            if name in known:
                entry = known[name]
                node.replace_self(
                    make_refnode(
                        self.app.builder, self.env.current_document.docname, entry.docname, entry.node_id,
                        node.deepcopy(), name,
                    )
                )  # fmt: skip


class TypeNames(SphinxTransform):
    """Links the types in signatures to classes only: ``bool`` is Python's type, not gtrace's dtype of that name."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(pending_xref)):
            short = "." not in node["reftarget"] and node["reftarget"][:1].islower()
            if short and node["reftype"] in ("class", "obj"):
                node.replace_self(node.children)


class InlineFigures(SphinxPostTransform):
    """Puts the text of SVG files into the page, where they take the colours of the theme."""

    default_priority = 300
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(nodes.image)):
            if node["uri"].endswith(".svg"):
                text = Path(self.app.srcdir, node["uri"]).read_text(encoding="utf-8")
                label = nodes.make_id(node.get("alt", ""))
                html = f'<div class="figure" id="figure-{label}">{text}</div>'
                node.parent.replace(node, nodes.raw("", html, format="html"))


def find_names(app: Sphinx) -> None:
    """Note under which name each public object is described."""
    app.config.described_names = descriptions(contents())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parts with Sphinx."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.add_config_value("described_names", {}, "")
    app.connect("builder-inited", find_names)
    app.connect("autodoc-process-docstring", docstring, priority=100)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skipped)
    app.add_transform(TypeNames)
    app.add_post_transform(CodeLinks)
    app.add_post_transform(InlineFigures)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
