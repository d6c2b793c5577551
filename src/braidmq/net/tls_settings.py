"""What TLS is to use: certificates, who may connect with which, versions.

``[tls]`` holds for every listener that speaks TLS; the ``tls`` of a listener's entry says what is
different there.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

ClientCerts = Literal["none", "optional", "required"]
UserFrom = Literal["cn", "dns", "email", "uri"]
MinVersion = Literal["1.2", "1.3"]

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secret, and authenticated. TLS 1.3 has no others."""


class CertificateEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certificate besides the first."""

    cert: Annotated[
        str,
        Meta(
            min_length=1,
            description="As `tls.cert`. It is used for clients that ask for one of its names.",
        ),
    ]
    key: Annotated[str, Meta(description="As `tls.key`.")] = ""


def _cert(of: str) -> Meta:
    return Meta(
        description=f"PEM file: {of}certificate, and behind it those between it and the root, as"
        " Let's Encrypt's `fullchain.pem`."
    )


KEY = Meta(
    description="PEM file with the private key, without a password; if empty, it is in the file"
    " of the certificate."
)
CERTIFICATES = Meta(
    description="More certificates: a client that names a host (SNI) is shown the one with that"
    " name, others that of `cert`."
)
CLIENT_CERTS = Meta(
    description="Whether clients show a certificate: `none`, `optional`, or `required`, and then"
    " nobody connects without."
)
CA = Meta(description="PEM file with the authorities whose client certificates are accepted.")
CRL = Meta(
    description="PEM file with revoked client certificates, one list for each authority; with"
    " one, all client certificates are checked, and none is accepted once the list is out of date."
)
USER_FROM = Meta(
    description="What of a client certificate is the name of its user: `cn` of the subject, or the"
    " first `dns`, `email` or `uri` of its alternative names."
)
MIN_VERSION = Meta(description="The oldest version of TLS: `1.2` or `1.3`.")
CIPHER_LIST = Meta(
    description="Ciphers of TLS 1.2, as OpenSSL writes them. Those of TLS 1.3 are all good."
)


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS, for all listeners that speak it. A certificate opens them, on the ports 5671 (AMQP),
    8883 (MQTT), 8084 (MQTT over WebSocket) and 8443 (HTTP): see `listeners.amqps_port` and so on.
    Files are read again when they change, and with the configuration: docs/security.md has
    examples."""

    cert: Annotated[str, _cert("the node's ")] = ""
    key: Annotated[str, KEY] = ""
    client_certs: Annotated[ClientCerts, CLIENT_CERTS] = "none"
    ca: Annotated[str, CA] = ""
    crl: Annotated[str, CRL] = ""
    user_from: Annotated[UserFrom, USER_FROM] = "cn"
    min_version: Annotated[MinVersion, MIN_VERSION] = "1.2"
    ciphers: Annotated[str, CIPHER_LIST] = CIPHERS
    handshake_timeout_s: Annotated[
        float, Meta(gt=0, le=600, description="How long a peer may take for its handshake.")
    ] = 10.0
    watch_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="How often the files are looked at for changes; 0: only"
            " with the configuration.",
        ),
    ] = 10.0
    certificates: Annotated[tuple[CertificateEntry, ...], CERTIFICATES] = ()


class ListenerTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one listener does differently."""

    cert: Annotated[str | None, _cert("this listener's ")] = None
    key: Annotated[str | None, KEY] = None
    certificates: Annotated[tuple[CertificateEntry, ...] | None, CERTIFICATES] = None
    client_certs: Annotated[ClientCerts | None, CLIENT_CERTS] = None
    ca: Annotated[str | None, CA] = None
    crl: Annotated[str | None, CRL] = None
    user_from: Annotated[UserFrom | None, USER_FROM] = None
    min_version: Annotated[MinVersion | None, MIN_VERSION] = None
    ciphers: Annotated[str | None, CIPHER_LIST] = None

    def over(self, general: TlsSettings) -> TlsSettings:
        """As it holds for this listener. Its own certificate has its own key and companions, its
        own authorities their own list of what they revoked."""
        given = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not None
        }
        if self.cert is not None:
            given = {"key": "", "certificates": ()} | given
        if self.ca is not None:
            given = {"crl": ""} | given
        return msgspec.structs.replace(general, **given)
