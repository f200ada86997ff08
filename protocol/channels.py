"""How connections are opened: addresses, options, limits. One place, so that both ends agree.

Rules. An address from outside is dialled as a host and a port and in no other way (gRPC would read "unix:/path" as a socket
file). Proxy variables of the environment are ignored: peers find each other directly. Keepalive pings notice a dead link within
about half a minute, a peer's link to its coordinator in half of that, also while a trainer is silent for minutes. Servers and
clients are set so that pings never count as abuse ("too many pings" closes a connection for being alive). A second server on a port
fails instead of sharing it. A server bounds what it holds for anybody: messages, calls, connections.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Sequence

import grpc
import grpc.aio

from shoal.protocol.errors import AddressError, ListenError, UnreachableError
from shoal.protocol.wire import MESSAGE_LIMIT_BYTES, PEER_MESSAGE_LIMIT_BYTES

CHUNK_BYTES = 1 << 20
"""Raw bytes per message when a whole state or part is fetched."""
KEEPALIVE_S = 15.0
"""Silence on a connection after which a ping asks whether it lives. gRPC takes less than a second as a second."""
SESSION_KEEPALIVE_S = 5.0
"""The same for a peer's session, on which a coordinator may have nothing to say for minutes: behind a cable that was cut the peer
would go on waiting, long after it was given up."""
KEEPALIVE_TIMEOUT_S = 10.0
"""How long the answer may take."""
BULK_KEEPALIVE_TIMEOUT_S = 60.0
"""The same where bulk bytes flow: the answer waits behind megabytes that a slow link takes its time for, and a transfer that stands
still is ended by its own deadline."""
METADATA_LIMIT_BYTES = 16 << 10

Options = list[tuple[str, int | str]]
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*\.?")


class Kind(enum.Enum):
    """What a connection carries; its value is the word for it."""

    ENROLMENT = "enrolment"
    SESSION = "session"
    BULK = "bulk"


RECEIVE_LIMIT_BYTES = {
    Kind.ENROLMENT: (256 << 10, 256 << 10),
    Kind.SESSION: (PEER_MESSAGE_LIMIT_BYTES, MESSAGE_LIMIT_BYTES),
    Kind.BULK: (2 << 20, 2 << 20),
}
"""The largest message that a (server, client) of this kind accepts."""
CALLS_LIMIT = {Kind.ENROLMENT: 16, Kind.SESSION: 100, Kind.BULK: 100}
"""Calls that are open at once on one connection; further ones wait at the caller. Open ones cost a server about 18 kB each."""
CONNECTIONS_LIMIT = {Kind.ENROLMENT: 1_000, Kind.SESSION: 10_000, Kind.BULK: 1_000}
"""Connections that a server has at once; it hangs up on further ones."""
ENROLMENT_S = 60.0
"""How long a connection of somebody unknown may last, and calls on it half as long again: an enrolment takes seconds."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port", "1.2.3.4:port" or "[v6]:port". Port 0 is for listening. Raises AddressError."""
    if len(address) > 280:
        raise AddressError(f"{address[:40]!r}... is too long for an address", 'write "host:port"')
    match = re.fullmatch(r"\[([^\[\]]*)\]:([0-9]{1,5})|([^:\[\]]*):([0-9]{1,5})", address)
    if match is None:
        raise AddressError(f"{address!r} is not an address", _hint(address))
    bracketed, v6_port, host, name_port = match.groups()
    port = int(v6_port or name_port)
    if port > 65535:
        raise AddressError(f"{address!r} has port {port}", "ports end at 65535")
    if bracketed is not None:
        try:
            return str(ipaddress.IPv6Address(bracketed)), port
        except ValueError:
            raise AddressError(f"{address!r} has no IPv6 address between its brackets", 'write "[2001:db8::1]:50051"') from None
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise AddressError(f"{address!r} has no valid host name", 'write "host:port"')
    return host, port


def join_address(host: str, port: int) -> str:
    """The opposite of `split_address`: brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hint(address: str) -> str:
    if "://" in address:
        return f'leave out "{address.partition("://")[0]}://" and any path: write "host:port"'
    host, colon, port = address.rpartition(":")
    if address.count(":") > 1 and "[" not in address:
        try:
            ipaddress.IPv6Address(host)
            return f'IPv6 needs brackets: write "[{host}]:{port}"'
        except ValueError:
            pass
    try:
        ipaddress.IPv6Address(address.strip("[]"))
        return f'add the port: write "[{address.strip("[]")}]:50051"'
    except ValueError:
        return 'write "host:port"' if colon else f'add the port: write "{address[:60] or "host"}:50051"'


def target(address: str) -> str:
    """What to give to gRPC to dial this address, and nothing else than this address. Raises UnreachableError."""
    host, port = split_address(address)
    if port == 0:
        raise UnreachableError(f"{address!r} has port 0", "give the port that the other side listens on")
    return f"dns:///{join_address(host, port)}"


def channel_options(
    kind: Kind, server_name: str, keepalive_s: float | None = None, keepalive_timeout_s: float | None = None
) -> Options:
    """Options of a client's channel. `server_name` is the name that the server's certificate must have."""
    _, limit = RECEIVE_LIMIT_BYTES[kind]
    server_limit, _ = RECEIVE_LIMIT_BYTES[kind]
    return [
        ("grpc.ssl_target_name_override", server_name),
        ("grpc.default_authority", server_name),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", server_limit),
        *_common(
            keepalive_s or (SESSION_KEEPALIVE_S if kind is Kind.SESSION else KEEPALIVE_S), keepalive_timeout_s or _patience(kind)
        ),
        ("grpc.http2.max_pings_without_data", 0),
        # A channel is one connection of its own: several to one peer go faster over long links, and closing one closes its socket.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 15_000),
        # Retries are decisions of ours; a stream that gRPC opens again by itself would say things twice.
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]


def server_options(kind: Kind, keepalive_s: float = KEEPALIVE_S, keepalive_timeout_s: float | None = None) -> Options:
    """Options of a server that accepts `channel_options` connections of the same kind."""
    limit, client_limit = RECEIVE_LIMIT_BYTES[kind]
    passing = (
        ("grpc.max_connection_age_ms", round(ENROLMENT_S * 1000)),
        ("grpc.max_connection_age_grace_ms", round(ENROLMENT_S * 500)),
    )
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", CALLS_LIMIT[kind]),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_LIMIT[kind]),
        *(passing if kind is Kind.ENROLMENT else ()),
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", client_limit),
        *_common(keepalive_s, keepalive_timeout_s or _patience(kind)),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 1),
        ("grpc.server_handshake_timeout_ms", 20_000),
    ]


def _patience(kind: Kind) -> float:
    """How long the answer to a ping may take."""
    return BULK_KEEPALIVE_TIMEOUT_S if kind is Kind.BULK else KEEPALIVE_TIMEOUT_S


def _common(keepalive_s: float, keepalive_timeout_s: float) -> Options:
    return [
        ("grpc.keepalive_time_ms", round(keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive_timeout_s * 1000)),
        # Without this a ping that is never answered ends the connection after a minute, whatever the keepalive timeout says.
        ("grpc.http2.ping_timeout_ms", round(keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_metadata_size", METADATA_LIMIT_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_LIMIT_BYTES),
    ]


def open_channel(kind: Kind, address: str, credentials: grpc.ChannelCredentials, server_name: str) -> grpc.aio.Channel:
    """A channel to `address`, where a server whose certificate says `server_name` must answer. Connects when first used."""
    return grpc.aio.secure_channel(target(address), credentials, options=channel_options(kind, server_name))


def new_server(kind: Kind, extra: Sequence[tuple[str, int | str]] = ()) -> grpc.aio.Server:
    """A server without ports or methods yet."""
    return grpc.aio.server(options=[*server_options(kind), *extra])


def listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials) -> int:
    """Add a secure port; returns the real one (for port 0). Raises ListenError when it is taken or not ours."""
    host, port = split_address(address)
    try:
        bound = server.add_secure_port(join_address(host, port), credentials)
    except RuntimeError as error:
        raise ListenError(
            f"cannot listen on {address}", "another program has the port, or the address is not this machine's"
        ) from error
    if bound == 0:
        raise ListenError(f"cannot listen on {address}", "another program has the port, or the address is not this machine's")
    return bound
