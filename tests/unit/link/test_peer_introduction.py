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
from remuda.link.stream_messages import LinkAskPeers, LinkWelcome, link_line
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


@pytest.mark.parametrize(("host", "port"), [("", 9444), ("x" * 300, 9444), ("10.0.0.1", 0), ("10.0.0.1", 70_000)])
def test_a_place_that_cannot_be_is_not_written_down(host: str, port: int) -> None:
    book, key = Book("n1", "n2"), PeerKey()
    book.ask("n1", key.csr, host, port)
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
        server = LinkServer(
            anybody, ProgressBoard(), lambda *_: None, lambda *_: True, introduce=book.registry.introduce
        )
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
        with pytest.raises(OSError, match="less than 10 s ago"):
            await client.ask_peers(PeerKey().csr, "10.0.0.1", 9444)
        book.now += SIGN_S
        with pytest.raises(OSError, match="No certificate"):
            await client.ask_peers("junk", "10.0.0.1", 9444)
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
            theirs[1].write(link_line(LinkWelcome(promises=True)))
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
