"""The server's certificates: a CA of its own, and a certificate for the names clients reach it by.

Both are made once per state directory and kept there, keys readable by their owner alone. The server's certificate is made
anew when it would expire soon or does not name an address that is asked for; clients trust the CA and do not notice.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CA_DAYS = 3650
_SERVER_DAYS = 365
_RENEW_DAYS = 30
_SKEW = timedelta(minutes=5)  # clocks of clients may be behind ours

Names = list[str]


class LinkCertificates:
    """The files below `directory`. `prepare` makes what is missing and gives the server's TLS context."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = directory / "ca.crt"
        self.certificate = directory / "server.crt"
        self._ca_key = directory / "ca.key"
        self._key = directory / "server.key"

    def prepare(self, hosts: Iterable[str], now: float) -> ssl.SSLContext:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(now, UTC)
        wanted = sorted({"localhost", "127.0.0.1", "::1", *hosts})
        if not (self.ca.exists() and self._ca_key.exists()):
            self._make_ca(moment)
            self.certificate.unlink(missing_ok=True)
        if not self._is_good(wanted, moment):
            self._make_server(wanted, moment)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self._key)
        return context

    def _is_good(self, hosts: Names, now: datetime) -> bool:
        try:
            found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
            found.verify_directly_issued_by(ca)
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except Exception:
            return False  # missing, damaged, or of another CA: all the same, a new one is made
        named = {str(name.value) for name in names}
        return set(hosts) <= named and found.not_valid_after_utc - now > timedelta(days=_RENEW_DAYS)

    def _make_ca(self, now: datetime) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _certificate_name("remuda")
        builder = (
            _certificate_builder(name, name, key.public_key(), now, _CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_certificate_usage(ca=True), critical=True)
        )
        certificate = builder.sign(key, hashes.SHA256())
        write_private_file(self._ca_key, _private_key_pem(key))
        write_private_file(self.ca, certificate.public_bytes(serialization.Encoding.PEM))

    def _make_server(self, hosts: Names, now: datetime) -> None:
        ca_key = serialization.load_pem_private_key(self._ca_key.read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _certificate_builder(_certificate_name("remuda-apiserver"), ca.subject, key.public_key(), now, _SERVER_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_certificate_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_certificate_host(host) for host in hosts]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )
        certificate = builder.sign(ca_key, hashes.SHA256())
        write_private_file(self._key, _private_key_pem(key))
        write_private_file(self.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _certificate_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _certificate_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate_host(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def _private_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private_file(path: Path, data: bytes) -> None:
    """The whole file or the old one, readable by its owner alone from the first byte on."""
    made = path.with_name(f".{path.name}.new")
    made.unlink(missing_ok=True)
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(made, path)
