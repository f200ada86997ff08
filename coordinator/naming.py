"""Which peer an operator means by a display name, an id, or the beginning of one.

Rule: names are chosen by volunteers and are not unique, so a name that fits two identities is refused with both. Questions only.
Neighbour: `core` asks before it kicks, bans, drains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.protocol.admin import AdminError
from shoal.protocol.messages import PeerId

SHORTEST_PREFIX = 4
"""Characters of an id that may stand for it."""
_LISTED = 4
_WHOLE_ID = re.compile(r"[0-9a-f]{32}")


def find(text: str, names: Mapping[PeerId, str], where: str) -> PeerId | AdminError:
    """The one peer of `names` (id to display name) that `text` means; `where` says in errors what these are ("in the run")."""
    if text in names:
        return text
    fitting = [
        peer for peer, name in names.items() if (name and name == text) or (len(text) >= SHORTEST_PREFIX and peer.startswith(text))
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed = ", ".join(label(peer, names[peer]) for peer in fitting[:_LISTED]) + (", ..." if len(fitting) > _LISTED else "")
        return AdminError(f"{text!r:.80} may mean {len(fitting)} peers: {listed}", "name one by its id")
    return AdminError(
        f"no peer {text!r:.80} is {where}", f"give a name, an id, or {SHORTEST_PREFIX} or more of its first characters"
    )


def is_whole_id(text: str) -> bool:
    """Whether this is an id as identities have them, known or not."""
    return bool(_WHOLE_ID.fullmatch(text))


def label(peer: PeerId, name: str) -> str:
    """How a person would call a peer, and tell it from another of the same name."""
    return f"{name} ({peer[:8]})" if name else peer[:8]
