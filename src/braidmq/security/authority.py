"""A certificate authority of one's own, for trials and tests: it signs, and keeps nothing else.

For a network that matters use one that somebody looks after.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM = serialization.Encoding.PEM
HOUR = timedelta(hours=1)

AUTHORITY_DAYS = 3650
NODE_DAYS = 825
"""What browsers and operating systems take at most of an authority that was added by hand."""


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def may_sign() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def authority_certificate(
    name: str, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.Certificate:
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(may_sign(), critical=True)
        .sign(key, hashes.SHA256())
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def trial_files(hosts: Sequence[str]) -> dict[str, bytes]:
    """An authority and a node's certificate for these names and addresses, by file name."""
    now = datetime.now(UTC)
    authority_key, node_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = authority_certificate(
        "BraidMQ trial authority", authority_key, now - HOUR, now + timedelta(days=AUTHORITY_DAYS)
    )
    node = (
        x509.CertificateBuilder()
        .subject_name(named(hosts[0]))
        .issuer_name(authority.subject)
        .public_key(node_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - HOUR)
        .not_valid_after(now + timedelta(days=NODE_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_alternative(h) for h in hosts]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return {
        "ca.pem": authority.public_bytes(PEM),
        "ca.key": private_pem(authority_key),
        "node.pem": node.public_bytes(PEM),
        "node.key": private_pem(node_key),
    }


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
