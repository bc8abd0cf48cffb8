"""Certificates of peers: issued beforehand by the manager that leads, so that nodes know each other when nobody can be asked.

The key is made by the agent and stays in its memory; the manager's CA, made for each start, stays in the manager's. A certificate
names one node, the one whose stream asked for it, is good for a day, and for nothing but peers: no other server trusts that CA.
Of a CSR only the key is taken.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from remuda.api.errors import Refusal

GOOD_FOR = timedelta(days=1)
_CA_GOOD_FOR = timedelta(days=3650)
_SKEW = timedelta(hours=1)  # clocks of nodes may be behind ours, and with the API away nobody can be asked again
MAX_CSR = 4096
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class PeerAuthority:
    """The manager's side."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "remuda-peers")])
        made = (
            self._builder(self._name, self._key.public_key(), _CA_GOOD_FOR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_peer_key_usage(ca=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = made.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, node: str, csr: str) -> str:
        """The certificate as PEM; Refusal InvalidRequest when there is no key to be had from the CSR."""
        if len(node) > 253 or _NODE_NAME.fullmatch(node) is None:
            raise _invalid_peer_request(f"`{node[:64]}` is not a node's name")
        try:
            asked = x509.load_pem_x509_csr(csr[: MAX_CSR + 1].encode("ascii")) if len(csr) <= MAX_CSR else None
            key = asked.public_key() if asked is not None and asked.is_signature_valid else None
        except Exception:  # whatever the parser finds wrong with it
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise _invalid_peer_request("the certificate request is not one for a P-256 key")
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            self._builder(x509.Name([]), key, GOOD_FOR)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_peer_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([_peer_name(node)]), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode()

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, good_for: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.fromtimestamp(self._clock(), UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + good_for)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )


class PeerKey:
    """The agent's side."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(self._key, hashes.SHA256())
        self.csr = made.public_bytes(serialization.Encoding.PEM).decode()

    def contexts(self, certificate: str, cas: Sequence[str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For its own door and for those of others: both show the certificate, both want one of `cas` from the other side.
        ssl.SSLError or ValueError when they are no certificates, or not for this key."""
        door, asker = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        door.verify_mode = ssl.CERT_REQUIRED
        key = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with open(os.memfd_create("peer", os.MFD_CLOEXEC), "wb") as memory:  # `ssl` reads keys from files only
            memory.write(key + certificate.encode("ascii"))
            memory.flush()
            for context in (door, asker):
                context.minimum_version = ssl.TLSVersion.TLSv1_3
                context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
                for ca in cas:
                    context.load_verify_locations(cadata=ca)
        return door, asker


def _peer_key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _peer_name(node: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(node))  # some clusters name nodes by their address
    return x509.DNSName(node)


def _invalid_peer_request(why: str) -> Refusal:
    return Refusal("InvalidRequest", f"No certificate for peers: {why}.", "Use an agent of the same release.")
