"""An identity provider for tests: keys that rotate, tokens, and its JWKS over HTTP."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://issuer.example.com/realms/test"
AUDIENCE = "braidmq"


class Issuer:
    """``fetches`` counts who asked for the keys; while ``is_down`` nobody gets them."""

    def __init__(self, kid: str = "one") -> None:
        self.kid = kid
        self.private: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.algorithm = "RS256"
        self.fetches = 0
        self.is_down = False
        self.url = ""

    def rotate(self, kid: str, algorithm: str = "RS256") -> None:
        self.kid, self.algorithm = kid, algorithm
        if algorithm == "ES256":
            self.private = ec.generate_private_key(ec.SECP256R1())
        else:
            self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def jwk(self) -> dict[str, Any]:
        algorithm = ECAlgorithm if self.algorithm == "ES256" else RSAAlgorithm
        said: dict[str, Any] = json.loads(algorithm.to_jwk(self.private.public_key()))
        return said | {"kid": self.kid, "use": "sig", "alg": self.algorithm}

    def jwks(self) -> bytes:
        return json.dumps({"keys": [self.jwk()]}).encode()

    def public_pem(self) -> bytes:
        pem: bytes = self.private.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )
        return pem

    def token(
        self, user: str = "ann", scope: Any = "", *, lasts_s: float = 300, **more: Any
    ) -> str:
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": user,
            "scope": scope,
            "exp": time.time() + lasts_s,
        }
        return self.signed(claims | more)

    def signed(self, claims: dict[str, Any], **head: Any) -> str:
        """What is None is left out."""
        given = {key: value for key, value in claims.items() if value is not None}
        said = {"kid": self.kid, **head}
        return jwt.PyJWS().encode(
            json.dumps(given).encode(),
            self.private,
            self.algorithm,
            headers={key: value for key, value in said.items() if value is not None},
        )


@contextmanager
def served(issuer: Issuer) -> Iterator[Issuer]:
    """With its keys at ``issuer.url``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.fetches += 1
            body = issuer.jwks()
            self.send_response(503 if issuer.is_down else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: a test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}/jwks"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
