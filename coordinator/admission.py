"""Who may come in: what speaks against a peer's Hello, and against the model and data that it brings. Questions only.

Neighbour: `core` asks, and refuses in these words.
"""

from __future__ import annotations

from shoal.coordinator.ledger import Ledger
from shoal.protocol.channels import split_address
from shoal.protocol.errors import UnreachableError
from shoal.protocol.messages import (
    NO_VERSION,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    FragmentShape,
    Hello,
    PeerId,
    Refused,
    StateReady,
)

PARTS_LIMIT = 1 << 16
"""Parts of one entry: what a message can list."""


def why_barred(ledger: Ledger, peer: PeerId) -> Refused | None:
    """Why this identity may not come in, whatever it says; None: it may."""
    if peer in ledger.banned:
        return Refused("BANNED", f"{peer[:8]} is banned from run {ledger.run}", "ask the run's operator, who can take it back")
    return None


def why_not(ledger: Ledger, rights: frozenset[str], hello: Hello, somebody_has_it: bool) -> Refused | None:
    """Why this Hello is refused, whoever it comes from; None: it is not. `somebody_has_it`: a member can hand the state over."""
    if "peer" not in rights:
        return Refused("NO_RIGHT", "this certificate does not allow joining as a peer", "enrol with an invite")
    if hello.run != ledger.run:
        reason = f"this coordinator serves run {ledger.run}, not {hello.run}"
        return Refused("WRONG_RUN", reason, "join with this run's own invite")
    if hello.major != PROTOCOL_MAJOR:
        ours, theirs = f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}", f"{hello.major}.{hello.minor}"
        reason = f"the coordinator speaks protocol {ours}, this peer {theirs}"
        return Refused("VERSION", reason, "install the same shoal on both")
    if hello.version > (ledger.version if ledger.bound else max(ledger.version, 0)):
        reason = f"this peer holds version {hello.version}, but the journal ends at {ledger.version}"
        fix = "the coordinator was restored from an older journal: give it the newest one, or remove this peer's local copy"
        return Refused("AHEAD", reason, fix)
    if wrong := why_no_address(hello.address):
        return Refused("ADDRESS", wrong, "join with --advertise HOST:PORT, the address that others reach this peer at")
    ended = ledger.ended
    if ended is not None and (ledger.version == NO_VERSION or (hello.version != ledger.version and not somebody_has_it)):
        made = "nothing was trained in it" if ledger.version <= 0 else "its model is with those who took part"
        reason = f"the run ended at version {ledger.version} ({ended.reason}); {made}"
        return Refused("ENDED", reason, "make a new run with `shoal coordinator init`")
    return None


def why_no_address(address: str) -> str:
    """What keeps others from dialling this text; "" for an address, and for a peer that accepts no connections."""
    try:
        host, port = split_address(address) if address else ("", 1)
    except UnreachableError as error:
        return str(error)
    return "" if port else f"{host} at port 0 cannot be dialled"


def why_unfit(ledger: Ledger, said: StateReady) -> Refused | None:
    """Why a peer with this model and data must not contribute; None: it may. Until a round binds version 0, any usable one fits."""
    for shape in said.layout.fragments or (FragmentShape(0),):
        if not 1 <= shape.parameters <= PARTS_LIMIT - shape.buffers:
            reason = (
                f"this peer's model has a fragment of {shape.parameters} + {shape.buffers} parts; 1 to {PARTS_LIMIT} are possible"
            )
            return Refused("LAYOUT", reason, "train a model with parameters, and not too many of them")
    origin = ledger.origin
    if origin is None or not ledger.bound:
        return None
    ours, theirs = origin.layout, said.layout
    if theirs.hash != ours.hash:
        names = f"{theirs.values} values (layout {theirs.hash.hex()[:12]}), the run's has {ours.values} ({ours.hash.hex()[:12]})"
        fix = "install the same model code and versions as the other peers"
        return Refused("LAYOUT", f"this peer's model has {names}", fix)
    if origin.data and said.data and said.data != origin.data:
        names = f"{said.data.hex()[:12]}, the run's is {origin.data.hex()[:12]}"
        fix = "use the same files; with the standard library as data, the same release of Python"
        return Refused("DATA", f"this peer's training data has fingerprint {names}", fix)
    return None
