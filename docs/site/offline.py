"""What a page would load from a network. The site must load nothing."""

from __future__ import annotations

import re

LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object|input)\b[^>]*?\b(?:src|srcset|data)\s*=\s*["']?\s*(?:https?:)?//[^"'\s>]+
    |<link\b[^>]*?\bhref\s*=\s*["']?\s*(?:https?:)?//[^"'\s>]+
    |<(?:use|image)\b[^>]*?\bhref\s*=\s*["']?\s*(?:https?:)?//[^"'\s>]+
    |url\(\s*["']?\s*(?:https?:)?//[^)]+
    |@import\s+["'](?:https?:)?//[^"']+
    |\b(?:fetch|import|importScripts)\(\s*["'](?:https?:)?//[^"']+""",
    re.VERBOSE | re.IGNORECASE,
)
"""What makes a browser ask another machine: elements that load, styles and scripts. A link to click on does not."""


def outside(text: str) -> list[str]:
    """Return what a page, a style or a script would load from outside."""
    return [match[0] for match in LOADED.finditer(text)]
