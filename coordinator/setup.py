"""Makes a run's directory, and finds one's way in it.

Rule: `init` makes a whole directory or none: it is built beside its place and moved there. What `init` chose (ports above all)
is kept in the directory, so that a coordinator that is started again is where its peers look for it.

    journal.db       the run's memory (journal)
    authority/       the key that certifies members: whoever has it is the run
    admin/           the operator's credential, in the form that `shoal admin` reads
    settings.json    where the coordinator listens, and under which addresses others find it
    run.toml         the run spec, for people; what counts is in the journal
    invite.txt       the first invite

Neighbours: `server` serves such a directory.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.coordinator.enrolment import Addresses, Registry
from shoal.coordinator.journal import Journal, journal_url
from shoal.coordinator.records import RunCreated
from shoal.protocol.authority import Authority
from shoal.protocol.channels import join_address, split_address
from shoal.protocol.errors import ListenError, ShoalError, UnreachableError
from shoal.protocol.files import write_whole
from shoal.protocol.identity import Identity
from shoal.protocol.invites import Invite
from shoal.protocol.spec import RunSpec, example_toml

FIRST_USES = 10
FIRST_HOURS = 24.0
ADMIN_LIFETIME = datetime.timedelta(days=365)
"""Of the operator's credential; every start of the coordinator makes a new certificate for it."""
LISTEN = "0.0.0.0:7600"
ENROL_LISTEN = "0.0.0.0:7601"


class SetupError(ShoalError):
    """A run's directory cannot be made or used."""


@dataclass(frozen=True)
class Settings:
    """Where a coordinator listens ("host:port") and how others reach it (hosts, or "host:port" behind a port mapping)."""

    listen: str
    enrol_listen: str
    advertise: tuple[str, ...] = ()

    def addresses(self) -> Addresses:
        """What invites say."""
        return Addresses(
            enrolment=_reachable(self.enrol_listen, self.advertise, keep_port=False),
            session=_reachable(self.listen, self.advertise, keep_port=True),
        )


@dataclass(frozen=True)
class RunDirectory:
    """The places in a run's directory."""

    root: Path

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.root / "journal.db"

    @property
    def authority(self) -> Path:
        """The certificate authority."""
        return self.root / "authority"

    @property
    def admin(self) -> Path:
        """The operator's credential."""
        return self.root / "admin"

    @property
    def spec(self) -> Path:
        """The run spec, for people."""
        return self.root / "run.toml"

    @property
    def invite(self) -> Path:
        """The first invite, as a line."""
        return self.root / "invite.txt"

    @property
    def _settings(self) -> Path:
        return self.root / "settings.json"

    def load_settings(self) -> Settings:
        """What was chosen at `init` or since. Raises SetupError."""
        try:
            known = json.loads(self._settings.read_text(encoding="utf-8"))
            return Settings(known["listen"], known["enrol_listen"], tuple(known["advertise"]))
        except FileNotFoundError:
            raise SetupError(f"{self.root} holds no run", f"make one with `shoal coordinator init {self.root}`") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SetupError(f"{self._settings} cannot be read: {error}", "repair it: it is JSON") from error

    def save_settings(self, settings: Settings) -> None:
        """Keep them, atomically."""
        known = {"listen": settings.listen, "enrol_listen": settings.enrol_listen, "advertise": settings.advertise}
        write_whole(self._settings, json.dumps(known, indent=2).encode())


def init(
    directory: Path | str,
    spec: RunSpec,
    *,
    listen: str = LISTEN,
    enrol_listen: str = ENROL_LISTEN,
    advertise: str = "",
    uses: int = FIRST_USES,
    hours: float = FIRST_HOURS,
) -> Invite:
    """Make the directory of a new run; returns its first invite, for `uses` peers within `hours`. Raises ShoalError.

    Port 0 means any free one, chosen now and kept. `advertise` says how others reach this machine: names or addresses, several
    separated by commas, each with a port when a router maps it (that of sessions; enrolment's is the next one). Default: found out.
    """
    root = Path(directory)
    if os.path.ismount(root):
        raise SetupError(f"{root} is a mount point, which cannot appear whole", f"name a directory in it: {root / 'run'}")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise SetupError(f"{root} exists and is not empty", "name a new directory, or serve the run that is in it")
    hosts = tuple(part.strip() for part in advertise.split(",") if part.strip())
    first, second = _fixed_ports(listen, enrol_listen)
    settings = Settings(first, second, hosts)
    addresses = settings.addresses()
    building = root.with_name(f".{root.name}.{secrets.token_hex(4)}")
    try:
        building.mkdir(parents=True, mode=0o700)
        invite = _build(RunDirectory(building), spec, settings, addresses, uses, hours)
        if root.exists():
            root.rmdir()
        os.replace(building, root)
    except OSError as error:
        raise SetupError(f"cannot make {root}: {error.strerror or error}", "choose a place that this user may write") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return invite


def write_admin_credential(directory: RunDirectory, authority: Authority, addresses: Addresses) -> None:
    """Give the operator's identity a certificate and tell it where the coordinator is."""
    identity = Identity.load_or_create(directory.admin)
    certificate = authority.issue(identity.tls_public_key, identity.peer_id, {"admin"}, ADMIN_LIFETIME)
    known = {"run": authority.run, "enrol_addresses": addresses.enrolment, "session_addresses": addresses.session}
    write_whole(directory.admin / "ca.pem", authority.ca_pem)
    write_whole(directory.admin / "certificate.pem", certificate)
    write_whole(directory.admin / "run.json", json.dumps(known, indent=2).encode())


def _build(directory: RunDirectory, spec: RunSpec, settings: Settings, addresses: Addresses, uses: int, hours: float) -> Invite:
    authority = Authority.create(directory.authority, spec.run.name)
    write_admin_credential(directory, authority, addresses)
    directory.spec.write_text(example_toml(spec), encoding="utf-8")
    journal = Journal.open(journal_url(directory.journal))
    try:
        journal.append([RunCreated(spec.run.name, spec.to_json())])
        invite = Registry(authority, journal, addresses).invite(uses, hours, "init")
    finally:
        journal.close()
    write_whole(directory.invite, f"{invite.line()}\n".encode())
    directory.save_settings(settings)
    return invite


def _fixed_ports(*listen: str) -> list[str]:
    """The same addresses with port 0 replaced by free ports. All are held while they are chosen, so that they differ."""
    fixed = []
    with contextlib.ExitStack() as held:
        for address in listen:
            host, port = split_address(address)
            if port == 0:
                port = held.enter_context(_bind(host, address)).getsockname()[1]
            fixed.append(join_address(host, port))
    if len({split_address(address)[1] for address in fixed}) < len(fixed):
        raise SetupError(f"sessions and enrolment cannot share {fixed[0]}", "give them different ports")
    return fixed


def _bind(host: str, address: str) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        probe = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}", "name an address of this machine") from error
    try:
        probe.bind(where)
    except OSError as error:
        probe.close()
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}", "name an address of this machine") from error
    return probe


def _reachable(listen: str, advertise: tuple[str, ...], keep_port: bool) -> tuple[str, ...]:
    """Addresses for a port that listens at `listen`. A port in `advertise` is the session port's, the other's is the next one."""
    host, port = split_address(listen)
    if not advertise:
        return tuple(join_address(found, port) for found in (_own_hosts() if _is_any(host) else [host]))
    addresses = []
    for entry in advertise:
        try:
            mapped_host, mapped = split_address(entry)
        except UnreachableError:
            mapped_host, mapped = split_address(join_address(entry.strip("[]"), port))
        else:
            mapped = mapped if keep_port else mapped + 1
        addresses.append(join_address(mapped_host, mapped))
    return tuple(addresses)


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _own_hosts() -> list[str]:
    """Addresses of this machine on the way to the internet; nothing is sent (connecting a UDP socket only looks up the route)."""
    found = []
    routes: list[tuple[Any, str]] = [(socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")]
    for family, far_away in routes:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far_away, 9))
            found.append(probe.getsockname()[0])
    return found or ["127.0.0.1"]


def with_overrides(settings: Settings, listen: str, enrol_listen: str, advertise: str) -> Settings:
    """The same settings with what was given replaced."""
    if listen or enrol_listen:
        first, second = _fixed_ports(listen or settings.listen, enrol_listen or settings.enrol_listen)
        settings = replace(settings, listen=first, enrol_listen=second)
    if advertise:
        settings = replace(settings, advertise=tuple(part.strip() for part in advertise.split(",") if part.strip()))
    return settings
