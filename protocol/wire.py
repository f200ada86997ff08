"""Between frozen messages and bytes. (`to_plain` and `from_plain` live in `plain`, and are re-exported here.)"""

from __future__ import annotations

from shoal.protocol.plain import from_plain, to_plain

__all__ = ["from_plain", "to_plain"]
