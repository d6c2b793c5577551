"""From files to what a handshake needs, or to what is wrong with them.

OpenSSL's ``SSLContext`` can't say what is in it. So each certificate is shown to a client in
memory first, which tells its names, its serial number and its dates, and proves that it works.
"""

import os
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from braidmq.model.errors import BadSetting
from braidmq.net.settings import ListenerSpec
from braidmq.net.tls_settings import CertificateEntry, TlsSettings, UserFrom

NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""X509_V_FLAG_NO_CHECK_TIME: dates are looked at here, and have their own words."""

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
ALPN = {"mqtt": "mqtt", "ws": "http/1.1", "http": "http/1.1"}
"""What clients that ask may speak here. AMQP has no name there."""

BEGIN_CERTIFICATE, END_CERTIFICATE = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

SAN = {"dns": "DNS", "email": "email", "uri": "URI"}
"""As ``ssl`` calls the kinds of alternative names."""

At = tuple[str | int, ...]


class BadTls(BadSetting):
    code = "bad-tls"

    def __init__(self, message: str, at: At, *, remedy: str) -> None:
        """``at``: the way to what is wrong, inside of the table of TLS."""
        super().__init__(message, remedy=remedy)
        self.at = at


class BadListenerTls(BadTls):
    """With the listener it is about."""

    def __init__(self, spec: ListenerSpec, error: BadTls) -> None:
        super().__init__(error.args[0], error.at, remedy=error.remedy)
        self.spec = spec


class Certificate(NamedTuple):
    """What is known of one that is shown to clients."""

    file: str
    subject: str
    serial: str
    names: tuple[str, ...]
    not_before_s: float
    not_after_s: float
    """Seconds since 1970."""


class TlsContext(NamedTuple):
    """What new connections to a listener get."""

    ssl: ssl.SSLContext
    certificates: tuple[Certificate, ...]
    user_from: UserFrom | None
    """None if no certificate is asked for."""


def mistakes_in_files(
    specs: Iterable[ListenerSpec], settings: TlsSettings
) -> Iterator[BadListenerTls]:
    """What is wrong with the certificates of listeners, each thing once."""
    seen: set[str] = set()
    for spec in specs:
        try:
            context_of(spec, settings)
        except BadListenerTls as error:
            if str(error) not in seen:
                seen.add(str(error))
                yield error


def context_of(spec: ListenerSpec, settings: TlsSettings) -> TlsContext | None:
    if spec.tls is None:
        return None
    try:
        return make_context(spec, spec.tls.over(settings))
    except BadTls as error:
        raise BadListenerTls(spec, error) from None


def make_context(spec: ListenerSpec, settings: TlsSettings) -> TlsContext:
    """For a listener, of its own settings. Raises BadTls."""
    if not settings.cert:
        raise BadTls(
            f"listener {spec.name!r} speaks TLS and has no certificate",
            ("cert",),
            remedy="Set tls.cert and tls.key, or leave out this listener",
        )
    entries = [CertificateEntry(settings.cert, settings.key), *settings.certificates]
    made: list[tuple[Certificate, ssl.SSLContext]] = []
    for number, entry in enumerate(entries):
        at: At = ("certificates", number - 1) if number else ()
        context = _base_context(spec.protocol, settings)
        _load_key(context, entry, at)
        certificate = _look_at(entry, at)
        _check_dates(certificate, (*at, "cert"))
        _ask_for_certificates(context, settings)
        made.append((certificate, context))
    first = made[0][1]
    if len(made) > 1:
        first.sni_callback = _Chooser(made)
    wants = settings.client_certs != "none"
    return TlsContext(
        first,
        tuple(certificate for certificate, _ in made),
        settings.user_from if wants else None,
    )


def files_of(settings: TlsSettings) -> set[str]:
    """All that ``make_context`` reads."""
    found = {settings.cert, settings.key, settings.ca, settings.crl}
    for each in settings.certificates:
        found |= {each.cert, each.key}
    return found - {""}


def fingerprint(files: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """What changes when a file does, or what its name leads to."""
    return {name: _stat(name) for name in files}


def user_of(certificate: dict[str, Any], user_from: UserFrom) -> str | None:
    """The user whom a verified certificate stands for; None if it names none."""
    if user_from == "cn":
        fields = (field for parts in certificate.get("subject", ()) for field in parts)
        found = [value for name, value in fields if name == "commonName"]
        # The last is the most specific one.
        return found[-1] if found else None
    kind = SAN[user_from]
    names = certificate.get("subjectAltName", ())
    return next((value for name, value in names if name == kind), None)


def _stat(name: str) -> tuple[int, ...]:
    try:
        found = os.stat(name)  # noqa: PTH116
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _base_context(protocol: str, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.set_ciphers(settings.ciphers)
    except ssl.SSLError:
        raise BadTls(
            f"OpenSSL knows no cipher in {settings.ciphers!r}",
            ("ciphers",),
            remedy="Write them as `openssl ciphers` does, or leave them out",
        ) from None
    if protocol in ALPN:
        context.set_alpn_protocols([ALPN[protocol]])
    return context


def _load_key(context: ssl.SSLContext, entry: CertificateEntry, at: At) -> None:
    _require_readable(entry.cert, (*at, "cert"))
    if entry.key:
        _require_readable(entry.key, (*at, "key"))
    try:
        context.load_cert_chain(entry.cert, entry.key or entry.cert, _no_password)
    except _PasswordAsked:
        raise BadTls(
            f"the key in {entry.key or entry.cert} has a password",
            (*at, "key" if entry.key else "cert"),
            remedy="Store it without one, readable for the node's user only:"
            " `openssl pkey -in KEY -out NEW`",
        ) from None
    except ssl.SSLError as error:
        raise _bad_pair(entry, at, error) from None


class _PasswordAsked(Exception):
    pass


def _no_password() -> str:
    raise _PasswordAsked


def _bad_pair(entry: CertificateEntry, at: At, error: ssl.SSLError) -> BadTls:
    key = entry.key or entry.cert
    if error.reason == "KEY_VALUES_MISMATCH":
        return BadTls(
            f"the key in {key} is not that of the certificate in {entry.cert}",
            (*at, "key" if entry.key else "cert"),
            remedy="Give the key that the certificate was requested with",
        )
    if not _certificates_in(entry.cert):
        return BadTls(
            f"{entry.cert} has no certificate in PEM form",
            (*at, "cert"),
            remedy="It begins with -----BEGIN CERTIFICATE-----",
        )
    if "PRIVATE KEY-----" not in _text(key):
        return BadTls(
            f"{key} has no private key in PEM form",
            (*at, "key" if entry.key else "cert"),
            remedy="Give the file that has -----BEGIN PRIVATE KEY-----",
        )
    return BadTls(
        f"OpenSSL does not take the certificate in {entry.cert} with the key in {key}:"
        f" {_reason(error)}",
        (*at, "cert"),
        remedy="Have a new one made, for instance with an ECDSA key",
    )


def _look_at(entry: CertificateEntry, at: At) -> Certificate:
    """Have a client in memory look at it."""
    found = _certificates_in(entry.cert)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(entry.cert, entry.key or entry.cert, _no_password)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    try:
        asking.load_verify_locations(cadata=found[0])
        seen = _shown(serving, asking)
    except ssl.SSLError as error:
        said = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else None
        raise BadTls(
            f"the certificate in {entry.cert} is not good for a server: {said or _reason(error)}",
            (*at, "cert"),
            remedy="Have one made for servers, with its host names as alternative names",
        ) from None
    return Certificate(
        entry.cert,
        _subject(seen),
        seen["serialNumber"],
        tuple(value.lower() for kind, value in seen.get("subjectAltName", ()) if kind == "DNS"),
        ssl.cert_time_to_seconds(seen["notBefore"]),
        ssl.cert_time_to_seconds(seen["notAfter"]),
    )


def _shown(serving: ssl.SSLContext, asking: ssl.SSLContext) -> dict[str, Any]:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there)
    server = serving.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return client.getpeercert() or {}


def _check_dates(certificate: Certificate, at: At) -> None:
    now_s = time.time()
    if now_s > certificate.not_after_s:
        raise BadTls(
            f"the certificate in {certificate.file} expired on {date_of(certificate.not_after_s)}",
            at,
            remedy="Renew it",
        )
    if now_s < certificate.not_before_s:
        raise BadTls(
            f"the certificate in {certificate.file} is not valid before"
            f" {date_of(certificate.not_before_s)}",
            at,
            remedy="Wait, or set this machine's clock",
        )


def date_of(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_s))


def _ask_for_certificates(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.client_certs == "none":
        return
    if not settings.ca:
        raise BadTls(
            f"client certificates are {settings.client_certs}, and no authority is known that"
            " signs them",
            ("client_certs",),
            remedy="Set tls.ca to a PEM file with it",
        )
    _load_authorities(context, settings.ca, "ca", "certificate")
    if settings.crl:
        _load_authorities(context, settings.crl, "crl", "crl")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    required = settings.client_certs == "required"
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def _load_authorities(context: ssl.SSLContext, file: str, field: str, kind: str) -> None:
    _require_readable(file, (field,))
    before = context.cert_store_stats()
    count = "crl" if kind == "crl" else "x509"
    with_error: ssl.SSLError | None = None
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        with_error = error
    if with_error is not None or context.cert_store_stats()[count] == before[count]:
        wanted = "X509 CRL" if kind == "crl" else "CERTIFICATE"
        raise BadTls(
            f"{file} can't be read as a list of {kind}s in PEM form",
            (field,),
            remedy=f"It begins with -----BEGIN {wanted}-----",
        )


def _require_readable(file: str, at: At) -> None:
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise BadTls(
            f"{file} can't be read: {error.strerror}",
            at,
            remedy="Correct the path, or let the user read it that the node runs as",
        ) from None


class _Chooser:
    """SNI: the certificate with the name that a client asks for."""

    def __init__(self, made: Sequence[tuple[Certificate, ssl.SSLContext]]) -> None:
        self._by_name: dict[str, ssl.SSLContext] = {}
        # Of two with one name the first counts.
        for certificate, context in reversed(made):
            self._by_name.update(dict.fromkeys(certificate.names, context))

    def __call__(self, link: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if not name:
            return
        name = name.lower().removesuffix(".")
        found = self._by_name.get(name) or self._by_name.get("*." + name.partition(".")[2])
        if found is not None:
            link.context = found


def _certificates_in(file: str) -> list[str]:
    return list(_blocks(_text(file)))


def _blocks(text: str) -> Iterator[str]:
    at = text.find(BEGIN_CERTIFICATE)
    while at >= 0:
        end = text.find(END_CERTIFICATE, at)
        if end < 0:
            return
        yield text[at : end + len(END_CERTIFICATE)]
        at = text.find(BEGIN_CERTIFICATE, end)


def _text(file: str) -> str:
    return Path(file).read_bytes().decode("latin-1")


def _subject(seen: dict[str, Any]) -> str:
    fields = (field for parts in seen.get("subject", ()) for field in parts)
    return ", ".join(f"{name}={value}" for name, value in fields)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
