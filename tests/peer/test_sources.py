"""Files that are fetched: resumed, verified, waited for. The servers are real ones, on loopback."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.peer import reach as reach_module
from shoal.peer import sources as sources_module
from shoal.peer.reach import OutOfReachError, Reach, reach_of
from shoal.peer.sources import DataError, Patience, Places, fetch
from shoal.protocol.locks import FileLock
from shoal.protocol.spec import DataFile

CONTENT = bytes(index * 7 % 251 for index in range(300_000))
QUICK = Patience(stall_s=0.3, first_pause_s=0.01, longest_pause_s=0.05)

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Source:
    """A web server whose next answers are scripted; after them it serves the file, ranges too."""

    def __init__(self, port: int = 0) -> None:
        self.content = CONTENT
        self.script: list[Answer] = []
        self.ranges: list[str] = []
        source = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                source.ranges.append(self.headers.get("Range", ""))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    (source.script.pop(0) if source.script else source.serve)(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/books/a%20b.txt"

    def serve(self, request: http.server.BaseHTTPRequestHandler, stop: int | None = None, pause_s: float = 0.0) -> None:
        """Serve the file from where it was asked for; break off at `stop`, after a pause perhaps."""
        wanted = request.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        request.send_response(206 if wanted else 200)
        if wanted:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        request.send_header("Content-Length", str(len(self.content) - start))
        request.end_headers()
        request.wfile.write(self.content[start:stop])
        request.wfile.flush()
        time.sleep(pause_s)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.close()


def status(code: int) -> Answer:
    return lambda request: request.send_error(code)


def file_at(url: str, content: bytes = CONTENT) -> DataFile:
    return DataFile(path=url.replace("%20", " "), sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def test_what_is_lacking_is_fetched_once_and_kept_under_its_digest(source: Source, tmp_path: Path) -> None:
    file, said = file_at(source.url), list[str]()
    place = Places(None, tmp_path, said.append, Reach.MACHINE, QUICK).find(file)
    assert place.read_bytes() == CONTENT
    assert place == tmp_path / file.sha256
    assert Places(tmp_path / "empty", tmp_path, said.append, Reach.MACHINE, QUICK).find(file) == place
    assert len(source.ranges) == 1
    assert said == []


def test_a_file_of_the_volunteers_folder_is_not_fetched(source: Source, tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a b.txt").write_bytes(CONTENT)
    assert Places(tmp_path, tmp_path / "cache", pytest.fail).find(file_at(source.url)) == tmp_path / "books" / "a b.txt"
    assert source.ranges == []


def test_a_fetch_that_broke_off_goes_on_where_it_stopped(source: Source, tmp_path: Path) -> None:
    said = list[str]()
    source.script = [
        lambda request: source.serve(request, stop=100_000),
        status(503),
        lambda request: source.serve(request, 200_000),
    ]
    assert fetch(file_at(source.url), tmp_path, said.append, QUICK, Reach.MACHINE).read_bytes() == CONTENT
    assert source.ranges == ["", "bytes=100000-", "bytes=100000-", "bytes=200000-"]
    assert "100000 of 300000 bytes are here; trying again" in said[0]
    assert "503" in said[1]
    assert not list(tmp_path.glob("*.partial"))


def test_a_source_that_stalls_is_left_and_asked_again(source: Source, tmp_path: Path) -> None:
    said = list[str]()
    source.script = [lambda request: source.serve(request, stop=50_000, pause_s=1.5)]
    began = time.monotonic()
    assert fetch(file_at(source.url), tmp_path, said.append, QUICK, Reach.MACHINE).read_bytes() == CONTENT
    assert time.monotonic() - began < 1.4
    assert "the source stalls" in said[0]
    assert source.ranges[1] == "bytes=50000-"


def test_a_source_that_drips_has_stalled(source: Source, tmp_path: Path) -> None:
    def drip(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for index in range(30):
            request.wfile.write(CONTENT[index : index + 1])
            time.sleep(0.05)

    said = list[str]()
    source.script = [drip]
    assert fetch(file_at(source.url), tmp_path, said.append, QUICK, Reach.MACHINE).read_bytes() == CONTENT
    assert "the source stalls (only" in said[0]


def test_a_source_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said, made = list[str](), list[Source]()

    def tell(sentence: str) -> None:
        said.append(sentence)
        if len(said) == 3:
            made.append(Source(port))

    try:
        assert fetch(file_at(f"http://127.0.0.1:{port}/x"), tmp_path, tell, QUICK, Reach.MACHINE).read_bytes() == CONTENT
    finally:
        for source in made:
            source.close()
    assert len(said) == 3
    assert all("cannot be fetched (Connection refused); 0 of 300000 bytes" in line for line in said)


@pytest.mark.parametrize("code", [403, 404, 500])
def test_a_file_that_is_gone_for_a_while_is_waited_for(source: Source, tmp_path: Path, code: int) -> None:
    said = list[str]()
    source.script = [status(code)] * 3
    assert fetch(file_at(source.url), tmp_path, said.append, QUICK, Reach.MACHINE).read_bytes() == CONTENT
    assert [str(code) in line for line in said] == [True] * 3


def test_another_file_at_the_address_is_named_with_both_digests(source: Source, tmp_path: Path) -> None:
    source.content = CONTENT[:-1] + b"!"
    file = file_at(source.url)
    with pytest.raises(DataError) as caught:
        fetch(file, tmp_path, pytest.fail, QUICK, Reach.MACHINE)
    for part in (file.path, file.sha256, hashlib.sha256(source.content).hexdigest()):
        assert part in str(caught.value)
    assert not (tmp_path / file.sha256).exists()


def test_what_was_put_together_from_two_files_is_fetched_anew(source: Source, tmp_path: Path) -> None:
    (tmp_path / f"{file_at(source.url).sha256}.partial").write_bytes(b"x" * 1000)
    said = list[str]()
    assert fetch(file_at(source.url), tmp_path, said.append, QUICK, Reach.MACHINE).read_bytes() == CONTENT
    assert source.ranges == ["bytes=1000-", ""]
    assert "beginning anew" in said[0]


def test_a_source_without_ranges_begins_anew(source: Source, tmp_path: Path) -> None:
    def whole(request: http.server.BaseHTTPRequestHandler) -> None:
        del request.headers["Range"]
        source.serve(request)

    (tmp_path / f"{file_at(source.url).sha256}.partial").write_bytes(CONTENT[:1000])
    source.script = [whole]
    assert fetch(file_at(source.url), tmp_path, pytest.fail, QUICK, Reach.MACHINE).read_bytes() == CONTENT


def test_a_cap_on_downloads_holds_for_data_too(source: Source, tmp_path: Path) -> None:
    began = time.monotonic()
    place = Places(None, tmp_path, pytest.fail, Reach.MACHINE, QUICK, cap_bytes_s=1e6).find(file_at(source.url))
    assert time.monotonic() - began >= len(CONTENT) / 1e6
    assert place.read_bytes() == CONTENT


def test_more_than_was_announced_is_not_stored(source: Source, tmp_path: Path) -> None:
    source.content = CONTENT * 20
    with pytest.raises(DataError, match="more than the 300000 bytes"):
        fetch(file_at(source.url), tmp_path, pytest.fail, QUICK, Reach.MACHINE)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 300_000 + 100


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirection_leads_to_no_other_protocol(source: Source, tmp_path: Path, target: str) -> None:
    def elsewhere(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", target)
        request.send_header("Content-Length", "0")
        request.end_headers()

    said = list[str]()
    source.script = [elsewhere]
    assert fetch(file_at(source.url), tmp_path, said.append, QUICK, Reach.MACHINE).read_bytes() == CONTENT
    assert len(said) == 1


def test_a_redirection_to_another_address_is_followed(source: Source, tmp_path: Path) -> None:
    def elsewhere(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", "/moved")
        request.send_header("Content-Length", "0")
        request.end_headers()

    source.script = [elsewhere]
    assert fetch(file_at(source.url), tmp_path, pytest.fail, QUICK, Reach.MACHINE).read_bytes() == CONTENT


def test_loopback_asks_no_proxy(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert fetch(file_at(source.url), tmp_path, pytest.fail, QUICK, Reach.MACHINE).read_bytes() == CONTENT


def test_peers_of_one_machine_fetch_a_file_once(source: Source, tmp_path: Path) -> None:
    file, said = file_at(source.url), list[str]()
    lock = FileLock.take(tmp_path / f"{file.sha256}.lock")

    def tell(sentence: str) -> None:
        said.append(sentence)
        (tmp_path / file.sha256).write_bytes(CONTENT)
        lock.release()

    assert fetch(file, tmp_path, tell, QUICK, Reach.MACHINE).read_bytes() == CONTENT
    assert said == [f"another peer on this machine is fetching {file.path}: waiting for it"]
    assert source.ranges == []


# --- what a stranger's run spec may not do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", [Reach.INTERNET, Reach.LAN])
def test_a_run_from_elsewhere_makes_nobody_ask_this_machine(source: Source, tmp_path: Path, reach: Reach) -> None:
    for url in (source.url, source.url.replace("127.0.0.1", "localhost")):
        with pytest.raises(OutOfReachError, match=r"127\.0\.0\.1|::1") as caught:
            fetch(file_at(url), tmp_path, pytest.fail, QUICK, reach)
        assert "which is this machine" in str(caught.value)
        assert "--data-lan" in str(caught.value)
    assert source.ranges == []


@pytest.mark.parametrize("host", ["192.168.1.1", "10.0.0.1", "100.64.0.1", "[fd00::1]", "169.254.169.254", "[::ffff:192.168.1.1]"])
def test_a_run_from_the_internet_makes_nobody_ask_a_private_network(tmp_path: Path, host: str) -> None:
    with pytest.raises(OutOfReachError, match="the run's data lead to"):
        fetch(file_at(f"http://{host}:1/x"), tmp_path, pytest.fail, QUICK)


def test_what_clouds_keep_on_link_local_addresses_is_never_asked_for(tmp_path: Path) -> None:
    with pytest.raises(OutOfReachError, match="no address of the internet"):
        fetch(file_at("http://169.254.169.254/x"), tmp_path, pytest.fail, QUICK, Reach.MACHINE)


def test_a_redirection_into_a_private_place_is_refused(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", "http://192.168.1.1:1/reboot")
        request.send_header("Content-Length", "0")
        request.end_headers()

    real = reach_module.kind_of
    monkeypatch.setattr(reach_module, "kind_of", lambda host: Reach.INTERNET if host == "127.0.0.1" else real(host))
    source.script = [elsewhere]
    with pytest.raises(OutOfReachError, match=r"192\.168\.1\.1.*which is a private network"):
        fetch(file_at(source.url), tmp_path, pytest.fail, QUICK)


def test_a_run_of_the_own_network_may_ask_there() -> None:
    assert reach_of(["127.0.0.1", "localhost", "::1"]) is Reach.MACHINE
    assert reach_of(["192.168.1.7", "127.0.0.1"]) is Reach.LAN
    assert reach_of(["192.168.1.7", "8.8.8.8"]) is Reach.INTERNET
    assert reach_of(["example.org"]) is Reach.INTERNET
    assert reach_of([]) is Reach.INTERNET


def test_what_does_not_fit_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    huge = DataFile(path="https://example.org/x", sha256="0" * 64, size=1 << 50)
    with pytest.raises(DataError, match=r"take 1073741824 MiB more, \d+ MiB are free"):
        Places(None, tmp_path / "cache").check_room([huge])
    Places(None, None).check_room([huge])
    (tmp_path / "x").write_bytes(b"")
    Places(tmp_path, tmp_path / "cache").check_room([huge])


def test_a_full_disk_is_an_error_and_no_reason_to_try_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources_module, "_download", full)
    with pytest.raises(DataError, match="No space left on device — make room"):
        fetch(file_at(source.url), tmp_path, pytest.fail, QUICK, Reach.MACHINE)


def test_an_empty_file_is_fetched_without_asking(source: Source, tmp_path: Path) -> None:
    assert fetch(file_at(source.url, b""), tmp_path, pytest.fail, QUICK, Reach.MACHINE).read_bytes() == b""


def test_https_checks_who_answers(source: Source, tmp_path: Path) -> None:
    """The server here speaks no TLS: nothing of it is believed, and the fetch waits."""

    class EnoughError(Exception):
        pass

    def tell(sentence: str) -> None:
        raise EnoughError(sentence)

    with pytest.raises(EnoughError, match=r"cannot be fetched \(.*SSL"):
        fetch(file_at(source.url.replace("http:", "https:")), tmp_path, tell, QUICK, Reach.MACHINE)
