"""TLS of a client: whom it trusts, and what it shows."""

import ssl
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from braidmq.model.errors import SetupError


class BadTlsFile(SetupError):
    code = "bad-tls-file"


class TlsOptions(NamedTuple):
    ca: str | None = None
    """PEM file with the authorities that are trusted; None: those of this machine."""
    cert: str | None = None
    """PEM file with the client's own certificate, and its key unless ``key`` has it."""
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Raises BadTlsFile."""
        return _context(self)


def options_in(query: Mapping[str, Sequence[str]]) -> TlsOptions:
    """``?ca=…&cert=…&key=…`` of a URL."""
    return TlsOptions(*(query.get(name, [None])[-1] for name in TlsOptions._fields))


@lru_cache(maxsize=16)
def _context(options: TlsOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca)
        if options.cert:
            context.load_cert_chain(options.cert, options.key)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(each for each in options if each)
        raise BadTlsFile(
            f"TLS can't use {named}: {getattr(error, 'reason', None) or error}",
            remedy="Give PEM files: the authority, and a certificate with its key",
        ) from error
    return context
