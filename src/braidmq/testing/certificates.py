"""An authority of a test's own, and what it signs: certificates of nodes and clients, lists of
revoked ones, as files."""

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from braidmq.security.authority import HOUR, PEM, authority_certificate, named

KeyKind = Literal["ec", "rsa"]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

YEAR = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path
    serial: int

    @property
    def key_hash(self) -> str:
        """Of its public key, as browsers name it."""
        public = x509.load_pem_x509_certificate(self.cert.read_bytes()).public_key()
        info = public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return base64.b64encode(hashlib.sha256(info).digest()).decode()

    @property
    def serial_text(self) -> str:
        """As ``ssl`` writes it."""
        text = f"{self.serial:X}"
        return text.zfill(len(text) + len(text) % 2)


class Authority:
    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        self.directory = directory
        self.file = directory / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = named(name)
        now = datetime.now(UTC)
        self._certificate = authority_certificate(name, self._key, now - YEAR, now + YEAR)
        self.file.write_bytes(self._certificate.public_bytes(PEM))

    def issue(
        self,
        name: str,
        *,
        alternatives: Sequence[x509.GeneralName] = (),
        client: bool | None = False,
        begins_in: timedelta = -HOUR,
        ends_in: timedelta = YEAR,
        key: KeyKind = "ec",
        file: str = "",
    ) -> Pair:
        """A certificate with the common name ``name``, good for servers or for clients, or, with
        None, for both; its files are written at once, as a renewal does it."""
        private = _new_key(key)
        now = datetime.now(UTC)
        usages = {
            False: [ExtendedKeyUsageOID.SERVER_AUTH],
            True: [ExtendedKeyUsageOID.CLIENT_AUTH],
            None: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
        }[client]
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(self._name)
            .public_key(private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins_in)
            .not_valid_after(now + ends_in)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        made = builder.sign(self._key, hashes.SHA256())
        cert = self.directory / f"{file or name}.pem"
        key_file = self.directory / f"{file or name}.key"
        replace(
            key_file,
            private.private_bytes(
                PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )
        replace(cert, made.public_bytes(PEM))
        return Pair(cert, key_file, made.serial_number)

    def for_node(
        self, *names: str, ends_in: timedelta = YEAR, key: KeyKind = "ec", file: str = "node"
    ) -> Pair:
        """For this machine, and under these names."""
        alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in names]
        if not names:
            alternatives = [
                x509.DNSName("localhost"),
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            ]
        begins_in = min(-HOUR, ends_in - HOUR)
        return self.issue(
            names[0] if names else "localhost",
            alternatives=alternatives,
            begins_in=begins_in,
            ends_in=ends_in,
            key=key,
            file=file,
        )

    def revoke(self, *pairs: Pair, file: str = "revoked.crl", next_in: timedelta = YEAR) -> Path:
        """The list of all that were revoked."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - YEAR)
            .next_update(now + next_in)
        )
        for each in pairs:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(each.serial)
                .revocation_date(now - HOUR)
                .build()
            )
        path = self.directory / file
        replace(path, builder.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        return path


def replace(path: Path, data: bytes) -> None:
    """At no time is there half a file."""
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)


def _new_key(kind: KeyKind) -> PrivateKey:
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())
