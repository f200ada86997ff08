"""Names that come from outside and may become part of a path, a certificate or a host name: checked here, once.

Rule: nothing that another machine chose is joined to a directory unless one of these let it pass.
"""

from __future__ import annotations

import re

RUN_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def is_run_name(text: str) -> bool:
    """1 to 40 lower-case letters, digits and inner hyphens: fit for a directory, a DNS label and a frame's header."""
    return RUN_NAME.fullmatch(text) is not None and _RESERVED.fullmatch(text) is None


def why_not_relative(path: str) -> str:
    """Why `path` may not be joined to a directory; "" if it may: relative, plain components that stay inside, "/" between them."""
    if not path or len(path) > 1024:
        return "it is empty" if not path else "it is longer than 1024 characters"
    if not path.isprintable():
        return "it holds characters that cannot be printed"
    if "\\" in path or ":" in path:
        return 'it holds "\\" or ":"'
    if path.startswith(("/", "~")):
        return "it is not relative"
    for component in path.split("/"):
        if component in ("", ".", ".."):
            return f'it has a component "{component}"'
        if _RESERVED.fullmatch(component) or component != component.rstrip(". "):
            return f'"{component}" is not a file name on every system'
    return ""
