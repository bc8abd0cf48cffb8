"""The manager's book of peers, asked over the stream: certificates for the node of the stream, and where its peers listen."""

from __future__ import annotations

import asyncio
import time

import pytest
from cryptography import x509

from remuda.core.health.peer_vouching import PeerPlace
from remuda.link.peer_certificates import MAX_CSR, PeerKey
from remuda.link.peer_registry import MAP_S, SIGN_S, PeerRegistry
from remuda.link.progress_board import ProgressBoard
from remuda.link.stream_client import Connection, LinkClient
from remuda.link.stream_messages import LinkAskPeers, LinkWelcome, link_message_line
from remuda.link.stream_server import LinkServer
from remuda.sim.virtual_time_loop import run_virtual
from tests.unit.link.test_past import pipe


class Book:
    def __init__(self, *nodes: str) -> None:
        self.now = time.time()
        self.labels: dict[str, dict[str, str]] = {node: {} for node in nodes}
        self.registry = PeerRegistry(lambda: self.labels, lambda node: 600.0, lambda: self.now)

    def ask(self, node: str, csr: str, host: str = "10.0.0.1", port: int = 9444) -> tuple[str, list[str]]:
        """Certificate and peers; ValueError with the reason when there is none."""
        self.now += MAP_S + 1
        told = self.registry.introduce(node, LinkAskPeers(1, csr, host, port))
        if told.error:
            raise ValueError(told.error)
        return told.certificate, [place.node for place in told.peers]


def names_in(certificate: str) -> list[str]:
    found = x509.load_pem_x509_certificate(certificate.encode())
    return [str(name.value) for name in found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]


def test_a_certificate_names_the_node_of_the_stream_and_the_same_key_gets_it_again() -> None:
    book, key = Book("n1", "n2"), PeerKey()
    certificate, _ = book.ask("n1", key.csr)
    assert names_in(certificate) == ["n1"]
    assert book.ask("n1", key.csr)[0] == certificate
    assert names_in(book.ask("n2", key.csr)[0]) == ["n2"]
    book.now += 7200.0
    assert book.ask("n1", key.csr)[0] != certificate, "long before it ends"


def test_peers_are_those_that_listen_and_are_there() -> None:
    book, key = Book("n1", "n2", "n3"), PeerKey()
    for node in ("n1", "n2", "n3"):
        book.ask(node, key.csr)
    book.ask("stranger", key.csr)
    assert book.ask("n1", key.csr)[1] == ["n2", "n3"]
    del book.labels["n2"]
    assert book.ask("n1", key.csr)[1] == ["n3"]
    assert "n2" not in book.registry._places, "it is forgotten"


@pytest.mark.parametrize("host", ["10.1.2.3", "2001:db8::7", "fd00::7", "100.64.0.9", "172.16.0.1", "240.0.0.9"])
def test_an_address_of_a_node_is_taken(host: str) -> None:
    book, key = Book("n1", "n2"), PeerKey()
    book.ask("n1", key.csr, host)
    assert book.ask("n2", key.csr)[1] == ["n1"]


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("", id="nothing"),
        pytest.param("worker-1", id="a name"),
        pytest.param("metadata.google.internal", id="a name that leads elsewhere"),
        pytest.param("localhost", id="a name of this machine"),
        pytest.param("10.0.0.1 ", id="more than an address"),
        pytest.param("10.0.0.1:9444", id="with a port"),
        pytest.param("[2001:db8::7]", id="in brackets"),
        pytest.param("010.0.0.1", id="an octal number"),
        pytest.param("167772161", id="as one number"),
        pytest.param("10.0.0.1\n", id="with an end of line"),
        pytest.param("127.0.0.1", id="loopback"),
        pytest.param("127.8.8.8", id="loopback too"),
        pytest.param("::1", id="loopback of IPv6"),
        pytest.param("::ffff:127.0.0.1", id="loopback as IPv6"),
        pytest.param("0.0.0.0", id="unspecified"),
        pytest.param("0.1.2.3", id="of this network"),
        pytest.param("::", id="unspecified of IPv6"),
        pytest.param("::ffff:0.0.0.0", id="unspecified as IPv6"),
        pytest.param("224.0.0.1", id="multicast"),
        pytest.param("ff02::1", id="multicast of IPv6"),
        pytest.param("::ffff:224.0.0.1", id="multicast as IPv6"),
        pytest.param("255.255.255.255", id="broadcast"),
        pytest.param("169.254.169.254", id="link-local, where clouds answer"),
        pytest.param("::ffff:169.254.169.254", id="the same as IPv6"),
        pytest.param("fe80::1", id="link-local of IPv6"),
        pytest.param("fe80::1%eth0", id="with a zone"),
        pytest.param("2001:db8::7%eth0", id="with a zone, too"),
        pytest.param("1" * 300, id="too long"),
    ],
)
def test_only_an_address_of_another_machine_is_told_to_others(host: str) -> None:
    book, key = Book("n1", "n2"), PeerKey()
    with pytest.raises(ValueError, match="is not an address where peers can ask"):
        book.ask("n1", key.csr, host)
    assert book.ask("n2", key.csr)[1] == []


@pytest.mark.parametrize("port", [0, -1, 70_000])
def test_a_port_that_cannot_be_is_not_written_down(port: int) -> None:
    book, key = Book("n1", "n2"), PeerKey()
    with pytest.raises(ValueError, match="is not a port"):
        book.ask("n1", key.csr, port=port)
    assert book.ask("n2", key.csr)[1] == []


@pytest.mark.parametrize("csr", ["", "nonsense", "é", "-" * (MAX_CSR + 1), PeerKey().csr.replace("A", "B")])
def test_a_request_that_cannot_be_read_gets_no_certificate(csr: str) -> None:
    with pytest.raises(ValueError, match="No certificate for peers"):
        Book("n1").ask("n1", csr)


@pytest.mark.parametrize("node", ["", "*", "*.zone", "N1", "a..b", "a" * 254, "n1\nn2"])
def test_a_name_that_no_node_has_gets_no_certificate(node: str) -> None:
    with pytest.raises(ValueError, match="not a node's name"):
        Book("n1").ask(node, PeerKey().csr)


def test_a_stream_asks_for_itself_and_is_told_of_the_others() -> None:
    async def main() -> None:
        book, key = Book("n1", "n2"), PeerKey()
        book.ask("n2", key.csr, "10.0.0.2", 9444)
        book.now += MAP_S + 1
        server = LinkServer(anybody, ProgressBoard(), lambda *_: None, lambda *_: True, peers=book.registry)
        served: list[asyncio.Task[None]] = []

        async def dial() -> Connection:
            ours, theirs = pipe()
            served.append(asyncio.create_task(server._serve(*theirs)))
            return ours

        client = LinkClient("n1", dial, str)
        with pytest.raises(OSError, match="no stream"):
            await client.ask_peers(key.csr, "10.0.0.1", 9444)
        running = asyncio.create_task(client.run())
        await client.connected.wait()
        told = await client.ask_peers(key.csr, "10.0.0.1", 9444)
        assert told.peers == (PeerPlace("n2", "10.0.0.2", 9444),)
        assert (told.seconds, names_in(told.certificate)) == (600.0, ["n1"])
        key.contexts(told.certificate, [told.ca])
        assert "less than 10 s ago" in (await client.ask_peers(PeerKey().csr, "10.0.0.1", 9444)).error
        book.now += SIGN_S
        assert "No certificate" in (await client.ask_peers("junk", "10.0.0.1", 9444)).error
        assert "not an address" in (await client.ask_peers(key.csr, "n1.example.org", 9444)).error
        assert await client.ask_promise() == 0.0, "the stream goes on"
        await server.stop()
        running.cancel()
        await asyncio.gather(running, *served, return_exceptions=True)

    run_virtual(main())


async def anybody(token: str, node: str) -> None: ...


def test_a_manager_of_an_older_release_is_not_asked() -> None:
    async def main() -> None:
        ends: list[Connection] = []

        async def dial() -> Connection:
            ours, theirs = pipe()
            ends.append(theirs)
            theirs[1].write(link_message_line(LinkWelcome(promises=True)))
            return ours

        client = LinkClient("n1", dial, str)
        running = asyncio.create_task(client.run())
        await client.connected.wait()
        with pytest.raises(OSError, match="knows of peers"):
            await client.ask_peers("", "10.0.0.1", 9444)
        for _, writer in ends:
            writer.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtual(main())
