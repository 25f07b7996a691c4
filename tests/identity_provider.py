"""An identity provider of the tests: real HTTP on loopback, with keys that it can change."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "runfold"
CLIENT = "console"
SECRET = "s e:cret"
_CLASSES = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}


class SigningKey:
    """A private key with its id. `alg` is what the published key says, which may be nothing."""

    def __init__(self, private: Any, kid: str, *, alg: str | None = None) -> None:
        self.private, self.kid, self.alg = private, kid, alg

    def published(self) -> dict[str, Any]:
        kind = {rsa.RSAPrivateKey: "RSA", ec.EllipticCurvePrivateKey: "EC"}
        name = next((name for each, name in kind.items() if isinstance(self.private, each)), "OKP")
        fields: dict[str, Any] = json.loads(_CLASSES[name].to_jwk(self.private.public_key()))
        alg = {"alg": self.alg} if self.alg else {}
        return {key: value for key, value in fields.items() if key != "key_ops"} | {
            "kid": self.kid,
            "use": "sig",
            **alg,
        }


def rsa_key(kid: str, *, bits: int = 2048, alg: str | None = None) -> SigningKey:
    return SigningKey(rsa.generate_private_key(65537, bits), kid, alg=alg)


def ec_key(kid: str) -> SigningKey:
    return SigningKey(ec.generate_private_key(ec.SECP256R1()), kid)


def ed_key(kid: str) -> SigningKey:
    return SigningKey(ed25519.Ed25519PrivateKey.generate(), kid)


class Provider:
    """`fetches` counts how often its keys were read. With `is_away` it answers 503."""

    def __init__(self, url: str) -> None:
        self.issuer = url
        self.named_issuer = url
        self.keys: list[SigningKey] = []
        self.more: list[dict[str, Any]] = []
        self.fetches = 0
        self.is_away = False
        self.redirects_to: str | None = None
        self.descriptions = 0
        self.described = 200
        """The status with which its description is answered."""
        self.exchanges = 0
        self.may_exchange = threading.Event()
        """Without it, requests with a code wait."""
        self.may_exchange.set()
        self.is_broken = False
        """Its answers are not HTTP."""
        self.codes: dict[str, dict[str, str]] = {}
        self.of_id: dict[str, Any] = {}
        """Claims of the next id tokens."""
        self.of_access: dict[str, Any] = {}
        """Claims of the next access tokens."""

    def answer(self, path: str) -> tuple[int, Mapping[str, Any]]:
        if self.is_away:
            return 503, {}
        if path == "/.well-known/openid-configuration":
            self.descriptions += 1
            return self.described, {
                "issuer": self.named_issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
            }
        self.fetches += 1
        return 200, {"keys": [*(key.published() for key in self.keys), *self.more]}

    def authorize(self, url: str) -> str:
        """The page on which a person agrees at once. Returns where the browser is sent."""
        query = dict(parse_qsl(urlsplit(url).query))
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange(self, body: str, authorization: str) -> tuple[int, Mapping[str, Any]]:
        """The tokens for a code, which counts once and for the client that began the login."""
        self.exchanges += 1
        self.may_exchange.wait(60)
        form = dict(parse_qsl(body))
        begun = self.codes.pop(form["code"], {})
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        is_same = begun.get("redirect_uri") == form["redirect_uri"] and form["client_id"] == CLIENT
        if not is_same or begun.get("code_challenge") != challenge:
            return 400, {"error": "invalid_grant"}
        if authorization != f"Basic {base64.b64encode(f'{CLIENT}:{quote(SECRET)}'.encode()).decode()}":
            return 401, {"error": "invalid_client"}
        return 200, {
            "id_token": self.token(**({"aud": CLIENT, "nonce": begun["nonce"]} | self.of_id)),
            "access_token": self.token(**self.of_access),
        }

    def token(
        self,
        key: SigningKey | None = None,
        *,
        alg: str = "RS256",
        headers: Mapping[str, Any] | None = None,
        without: tuple[str, ...] = (),
        **claims: Any,
    ) -> str:
        """A token that is valid for an hour, unless `claims` say otherwise."""
        key = key or self.keys[0]
        now = int(time.time())
        fields = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "ann",
            "iat": now,
            "exp": now + 3600,
            "scope": "openid runfold:read",
            **claims,
        }
        fields = {name: value for name, value in fields.items() if name not in without}
        return jwt.encode(fields, key.private, algorithm=alg, headers={"kid": key.kid, **(headers or {})})


@contextmanager
def identity_provider() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/authorize?"):
                self.send(302, {}, provider.authorize(self.path))
            else:
                self.send(*provider.answer(self.path), provider.redirects_to)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.send(*provider.exchange(body, self.headers["Authorization"]), provider.redirects_to)

        def send(self, status: int, fields: Mapping[str, Any], location: str | None) -> None:
            body = json.dumps(fields).encode()
            if provider.is_broken:
                self.wfile.write(b"nonsense\r\n")
                return
            self.send_response(302 if location else status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = Provider(f"http://127.0.0.1:{server.server_address[1]}")
        provider.keys.append(rsa_key("first"))
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            yield provider
        finally:
            provider.may_exchange.set()
            server.shutdown()
            serving.join()
