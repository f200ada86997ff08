"""Many servers that start at one moment on one machine, each on a port that the system chooses."""

from __future__ import annotations

import subprocess
import sys

SERVERS, TIMES = 20, 5
PROGRAM = """
import asyncio, datetime, sys
from shoal.protocol.authority import Authority
from shoal.protocol.channels import Kind, listen, new_server
from shoal.protocol.identity import Identity
from shoal.protocol.tls import Credential, server_credentials

async def main():
    authority, mine = Authority.generate("shoal"), Identity.generate()
    certificate = authority.issue(mine.tls_public_key, mine.peer_id, ["peer"], datetime.timedelta(hours=1))
    credential = Credential(mine.tls_key_pem, certificate, authority.ca_pem)
    print("here", flush=True)
    for _ in sys.stdin:
        server = new_server(Kind.BULK)
        print(listen(server, "127.0.0.1:0", server_credentials(credential)), flush=True)
        await server.start()
        sys.stdin.readline()
        await server.stop(None)
        print("free", flush=True)

asyncio.run(main())
"""


def test_twenty_servers_that_start_at_once_get_twenty_ports() -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(SERVERS)
    ]

    def all_say() -> list[str]:
        return [child.stdout.readline().strip() for child in children if child.stdout is not None]

    def tell_all() -> None:
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()

    try:
        assert all_say() == ["here"] * SERVERS
        for _ in range(TIMES):
            tell_all()
            ports = all_say()
            assert len(set(map(int, ports))) == SERVERS, "no two have one port"
            tell_all()
            assert all_say() == ["free"] * SERVERS
    finally:
        for child in children:
            child.communicate()
    assert [child.returncode for child in children] == [0] * SERVERS
