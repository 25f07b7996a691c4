"""An object store that speaks the part of Amazon's protocol that tables need, for tests.

A put with `If-None-Match: *` is refused if there is an object, so of two writers one wins.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote
from xml.sax.saxutils import escape

import uvicorn

from runfold.local import free_port

Answer = tuple[int, Mapping[str, str], bytes]

_MISSING: Answer = (404, {}, b"<Error><Code>NoSuchKey</Code></Error>")


class StoredObject(NamedTuple):
    """The content of an object, and when it was put."""

    content: bytes
    put_at: datetime


class ObjectStoreServer:
    """All objects of one bucket, as an ASGI application."""

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.is_away = False
        self._uploads: dict[str, dict[int, bytes]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        query = {
            name: values[0]
            for name, values in parse_qs(scope["query_string"].decode(), keep_blank_values=True).items()
        }
        key = scope["path"].partition("/bucket/")[2]
        status, more_headers, answer = self._answer(scope["method"], key, query, headers, body)
        fields = {"content-length": str(len(answer)), **more_headers}
        raw = [(name.encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer})

    def _answer(
        self, method: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> Answer:
        if self.is_away:
            return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
        match method:
            case "PUT" if "uploadId" in query:
                self._uploads[query["uploadId"]][int(query["partNumber"])] = body
                return 200, {"etag": _etag(body)}, b""
            case "PUT":
                return self._put(key, body, headers)
            case "POST" if "uploads" in query:
                upload = str(len(self._uploads))
                self._uploads[upload] = {}
                return 200, {}, _xml("InitiateMultipartUploadResult", UploadId=upload)
            case "POST" if "uploadId" in query:
                parts = self._uploads.pop(query["uploadId"])
                status, etag, _ = self._put(key, b"".join(parts[number] for number in sorted(parts)), headers)
                return status, etag, _xml("CompleteMultipartUploadResult", ETag=etag["etag"])
            case "POST":
                keys = re.findall("<Key>(.*?)</Key>", body.decode())
                for each in keys:
                    self.objects.pop(each, None)
                deleted = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in keys)
                return 200, {}, f"<DeleteResult>{deleted}</DeleteResult>".encode()
            case "DELETE":
                self.objects.pop(key, None)
                return 204, {}, b""
            case _ if "list-type" in query:
                return 200, {}, self._listed(query).encode()
            case _:
                return self._get(key, headers.get("range"))

    def _put(self, key: str, body: bytes, headers: dict[str, str]) -> Answer:
        if headers.get("if-none-match") == "*" and key in self.objects:
            return 412, {"etag": _etag(body)}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self.objects[key] = StoredObject(body, datetime.now(UTC))
        return 200, {"etag": _etag(body)}, b""

    def _get(self, key: str, wanted: str | None) -> Answer:
        stored = self.objects.get(key)
        if stored is None:
            return _MISSING
        fields = {
            "etag": _etag(stored.content),
            "last-modified": format_datetime(stored.put_at, usegmt=True),
        }
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
        if match is None:
            return 200, fields, stored.content
        size = len(stored.content)
        first = int(match[1]) if match[1] else max(0, size - int(match[2]))
        end = min(size, int(match[2]) + 1) if match[1] and match[2] else size
        return 206, {**fields, "content-range": f"bytes {first}-{end - 1}/{size}"}, stored.content[first:end]

    def _listed(self, query: dict[str, str]) -> str:
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        found, folders = "", dict[str, None]()
        for key in sorted(each for each in self.objects if each.startswith(prefix) and each > after):
            folder, slash, _ = (
                key[len(prefix) :].partition(query["delimiter"]) if "delimiter" in query else ("", "", "")
            )
            if slash:
                folders[f"{prefix}{folder}/"] = None
                continue
            stored = self.objects[key]
            found += (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{stored.put_at:%Y-%m-%dT%H:%M:%S.%fZ}"
                f"</LastModified><ETag>{_etag(stored.content)}</ETag><Size>{len(stored.content)}</Size></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{quote(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}{common}</ListBucketResult>"


def _xml(name: str, **members: str) -> bytes:
    inside = "".join(f"<{member}>{text}</{member}>" for member, text in members.items())
    return f"<{name}>{inside}</{name}>".encode()


def _etag(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@asynccontextmanager
async def object_store() -> AsyncIterator[tuple[ObjectStoreServer, dict[str, str]]]:
    """A server on loopback, and the variables of the environment with which clients find it."""
    server, port = ObjectStoreServer(), free_port()
    config = uvicorn.Config(server, host="127.0.0.1", port=port, log_level="error", lifespan="off")
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "K3Y",
        "AWS_SECRET_ACCESS_KEY": "S3CRET",
    }
    try:
        yield server, variables
    finally:
        running.should_exit = True
        await task
