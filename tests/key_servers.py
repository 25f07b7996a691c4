"""Servers that behave like Vault's transit engine and like AWS KMS, as far as Runfold uses them."""

import hashlib
import hmac
import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VAULT_TOKEN = "hvs.token"
AWS_KEY_ID, AWS_SECRET, AWS_REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-west-1"
KMS_KEY = "alias/runfold"


class RefusalError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status, self.body = status, body


class Asked(NamedTuple):
    """A request as the server got it."""

    path: str
    headers: Message
    body: bytes


class KeyServer:
    """Answers by `answer`, until a test sets a fault."""

    def __init__(self, answer: Callable[[Asked], dict[str, Any]]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.fault: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.url = ""


def broken(status: int, body: bytes = b"{}") -> Callable[[BaseHTTPRequestHandler], None]:
    """A fault: this answer, whatever was asked."""
    return lambda handler: _send(handler, status, body)


def silent(seconds: float) -> Callable[[BaseHTTPRequestHandler], None]:
    """A fault: no answer for some time, and then none."""
    return lambda _: time.sleep(seconds)


def dribbling(seconds: float) -> Callable[[BaseHTTPRequestHandler], None]:
    """A fault: an answer of which a byte comes from time to time."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)

    return answer


def garbled(handler: BaseHTTPRequestHandler) -> None:
    """A fault: an answer that is not HTTP."""
    handler.wfile.write(b"garbled\r\n\r\n")


@contextmanager
def vault() -> Iterator[KeyServer]:
    """Vault's transit engine at `/v1/transit`, with the key `runfold`."""
    key = AESGCM(AESGCM.generate_key(256))
    nonce = bytes(12)

    def answer(asked: Asked) -> dict[str, Any]:
        if asked.headers["X-Vault-Token"] != VAULT_TOKEN:
            raise RefusalError(403, b'{"errors":["permission denied"]}')
        body = json.loads(asked.body)
        try:
            if asked.path == "/v1/transit/encrypt/runfold":
                sealed = key.encrypt(nonce, b64decode(body["plaintext"], validate=True), None)
                data = {"ciphertext": f"vault:v1:{b64encode(sealed).decode()}", "key_version": 1}
            elif asked.path == "/v1/transit/decrypt/runfold":
                plain = key.decrypt(nonce, b64decode(body["ciphertext"].removeprefix("vault:v1:")), None)
                data = {"plaintext": b64encode(plain).decode()}
            else:
                raise RefusalError(404, b'{"errors":[]}')
        except (InvalidTag, ValueError) as error:
            raise RefusalError(400, b'{"errors":["cipher: message authentication failed"]}') from error
        return {"request_id": "1", "lease_id": "", "data": data, "warnings": None}

    with _served(KeyServer(answer)) as server:
        yield server


@contextmanager
def kms() -> Iterator[KeyServer]:
    """AWS KMS with the key `alias/runfold`. It checks the signature of each request (SigV4)."""
    key = AESGCM(AESGCM.generate_key(256))
    nonce = bytes(12)

    def answer(asked: Asked) -> dict[str, Any]:
        if asked.headers["Authorization"].rpartition("Signature=")[2] != _signature(asked):
            raise _kms_error("InvalidSignatureException")
        assert asked.headers["Content-Type"] == "application/x-amz-json-1.1"
        body = json.loads(asked.body)
        if body["KeyId"] != KMS_KEY:
            raise _kms_error("NotFoundException")
        context = json.dumps(body["EncryptionContext"], sort_keys=True).encode()
        if asked.headers["X-Amz-Target"] == "TrentService.Encrypt":
            sealed = key.encrypt(nonce, b64decode(body["Plaintext"], validate=True), context)
            return {"CiphertextBlob": b64encode(sealed).decode(), "KeyId": "arn:aws:kms:key"}
        assert asked.headers["X-Amz-Target"] == "TrentService.Decrypt"
        try:
            plain = key.decrypt(nonce, b64decode(body["CiphertextBlob"], validate=True), context)
        except InvalidTag as error:
            raise _kms_error("InvalidCiphertextException") from error
        return {"Plaintext": b64encode(plain).decode(), "KeyId": "arn:aws:kms:key"}

    with _served(KeyServer(answer)) as server:
        yield server


def _kms_error(code: str) -> RefusalError:
    return RefusalError(400, json.dumps({"__type": code, "message": "refused"}).encode())


def _signature(asked: Asked) -> str:
    """The signature that AWS's documentation of Signature Version 4 prescribes for a request."""
    scheme, _, fields = asked.headers["Authorization"].partition(" ")
    credential, signed, _ = (field.partition("=")[2] for field in fields.split(", "))
    assert scheme == "AWS4-HMAC-SHA256"
    key_id, _, scope = credential.partition("/")
    day = asked.headers["X-Amz-Date"][:8]
    assert (key_id, scope) == (AWS_KEY_ID, f"{day}/{AWS_REGION}/kms/aws4_request")
    assert {"host", "x-amz-date", "x-amz-target"} <= set(signed.split(";"))
    headers = "".join(f"{name}:{' '.join(asked.headers[name].split())}\n" for name in signed.split(";"))
    payload = hashlib.sha256(asked.body).hexdigest()
    canonical = f"POST\n{asked.path}\n\n{headers}\n{signed}\n{payload}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join([scheme, asked.headers["X-Amz-Date"], scope, digest])
    key = f"AWS4{AWS_SECRET}".encode()
    for part in [*scope.split("/"), text]:
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


@contextmanager
def _served(server: KeyServer) -> Iterator[KeyServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked = Asked(self.path, self.headers, body)
            server.asked.append(asked)
            if server.fault is not None:
                # The other side may have gone meanwhile.
                with suppress(OSError):
                    server.fault(self)
                return
            try:
                _send(self, 200, json.dumps(server.answer(asked)).encode())
            except RefusalError as refusal:
                _send(self, refusal.status, refusal.body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.url = f"127.0.0.1:{http.server_port}"
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
