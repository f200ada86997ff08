"""Why a connection did not come about, in one sentence with the address tried and what to do next.

Rule: gRPC says "failed to connect to all addresses" for six different troubles; a person needs to know which. So after a
failure, and only then, the address is dialled once more with plain sockets and TLS, step by step: name, port, TLS, the
certificate's times, its authority, its name. Used by `session`, `enrol` and the operator's client; nothing else translates
gRPC's errors.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from datetime import UTC, datetime

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from shoal.protocol.channels import split_address
from shoal.protocol.errors import IdentityError, RefusedError, RemoteProtocolError, ShoalError, UnreachableError
from shoal.protocol.tls import utc

PROBE_S = 3.0
"""Limit of each step of the second look."""


async def explain(error: grpc.aio.AioRpcError, address: str, ca: str, server_name: str, errand: str) -> ShoalError:
    """What `error` means. `errand` says what was wanted ("open a session"); `ca` (PEM) and `server_name`, from whom."""
    details = " ".join((error.details() or "").split())
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            found = await asyncio.to_thread(probe, address, ca, server_name)
            if found is not None:
                return found
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return UnreachableError(f"{address} is there but did not answer in time", "it may be busy; try again")
            return UnreachableError(
                f"could not {errand} at {address}: {details or 'the connection was closed'}",
                "the coordinator may have gone, or may not accept this peer's certificate (is this the enrolment port?)",
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return RefusedError(
                "wrong-port",
                f"{address} answers, but you cannot {errand} there" + (f" ({details})" if details else ""),
                "check the port: sessions and enrolment have different ones",
            )
        case grpc.StatusCode.UNKNOWN | grpc.StatusCode.INTERNAL:
            return RemoteProtocolError(f"{address} failed to {errand}: {details}", "look into the coordinator's log")
        case grpc.StatusCode.CANCELLED:
            return UnreachableError(f"the connection to {address} was closed")
        case code:
            return RefusedError(code.name.lower().replace("_", "-"), details or f"{address} refused to {errand} ({code.name})")


def probe(address: str, ca: str, server_name: str) -> ShoalError | None:
    """Look at an address step by step; what is wrong with it, or None. Blocks for at most a few seconds."""
    host, port = split_address(address)
    try:
        plain = socket.create_connection((host, port), timeout=PROBE_S)
    except socket.gaierror as error:
        return UnreachableError(f"the name {host!r} of {address} does not resolve ({error.strerror})", "check the address")
    except ConnectionRefusedError:
        return UnreachableError(
            f"nobody listens at {address} (connection refused)", "check that the coordinator runs, and the port"
        )
    except TimeoutError:
        return UnreachableError(f"{address} does not answer within {PROBE_S:.0f} s", "check the address, and firewalls on the way")
    except OSError as error:
        return UnreachableError(
            f"cannot reach {address}: {error.strerror or error}", "check the address and this machine's network"
        )
    with plain:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # looked at below, with words; nothing is sent on this connection
        context.set_alpn_protocols(["h2"])
        try:
            with context.wrap_socket(plain, server_hostname=server_name) as secure:
                shown = secure.getpeercert(binary_form=True)
        except TimeoutError:
            return UnreachableError(
                f"somebody listens at {address}, but did not answer within {PROBE_S:.0f} s",
                "it may be busy or frozen: look at it, or try again",
            )
        except (ssl.SSLEOFError, ConnectionError):
            return UnreachableError(
                f"{address} closed the connection at once", "check that the coordinator runs; a port forwarder may stand before it"
            )
        except (ssl.SSLError, OSError):
            return RefusedError("no-tls", f"{address} answers but does not speak TLS", "is this the coordinator's port?")
    if shown is None:
        return IdentityError(f"{address} shows no certificate", "is this the coordinator's port?")
    return _judge(x509.load_der_x509_certificate(shown), address, ca, server_name)


def _judge(shown: x509.Certificate, address: str, ca: str, server_name: str) -> ShoalError | None:
    try:
        shown.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.encode()))
    except (ValueError, TypeError, InvalidSignature):
        return IdentityError(
            f"{address} is not this run's coordinator: another authority signed its certificate",
            "it may serve another run, or was set up anew; ask its operator for a new invite",
        )
    if wrong := wrong_time(shown, f"the certificate of {address}"):
        return wrong
    try:
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = []
    if server_name not in names:
        return IdentityError(f"{address} is {', '.join(names) or 'nameless'}, not {server_name}", "check the address")
    return None


def wrong_time(certificate: x509.Certificate, whose: str) -> IdentityError | None:
    """What is wrong with a certificate's times, naming both times; None when it is valid now."""
    now = datetime.fromtimestamp(time.time(), UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock says {utc(now.timestamp())}"
    if now < begins:
        return IdentityError(
            f"{whose} is valid from {utc(begins.timestamp())}, but {clock}",
            "set the clock of this machine (or of the coordinator's) right",
        )
    if now >= ends:
        return IdentityError(
            f"{whose} expired at {utc(ends.timestamp())}; {clock}",
            "renew it, or set the clock right",
        )
    return None
