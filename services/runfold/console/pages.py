"""Serves the files of the console from memory: the page at `/`, and what it loads below `/console`.

The page loads one script and one style sheet, made of all modules and sheets. Their paths have a
digest of all files, so browsers keep them for ever. Only the page itself is asked for again. All
addresses are relative, because a gateway may serve the application under a path of its own.
"""

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from runfold.console.bundle import one_script
from runfold.http.problems import problem

_DIRECTIVES: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # The browser itself refuses scripts of ours that would make elements of text.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
CONTENT_SECURITY_POLICY: Final = "; ".join(_DIRECTIVES)

_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ONE_YEAR: Final = "public, max-age=31536000, immutable"
_ASK_AGAIN: Final = "no-cache"
_PAGE: Final = "index.html"
_ROOT: Final = "CONSOLE"
"""Stands in the page for the folder of the files."""
_STYLE: Final = f'<link rel="stylesheet" href="{_ROOT}/%s">\n'
_MODULE: Final = f'<script type="module" src="{_ROOT}/%s">'
_ELEMENT: Final = b"<rf-console>"
_SHEET: Final = "console.css"
_SCRIPT: Final = "console.js"


class _File(NamedTuple):
    content: bytes
    compressed: bytes
    media_type: str
    etag: str


class Console:
    """The files, which are read once."""

    def __init__(self, *, has_provider: bool = False) -> None:
        contents = dict(sorted(_contents(files(__package__) / "static", "")))
        contents |= _put_together({name: content.decode() for name, content in contents.items()})
        self.digest = _digest_of(
            b"".join(part for item in contents.items() for part in (item[0].encode(), item[1]))
        )
        contents[_PAGE] = contents[_PAGE].replace(_ROOT.encode(), f"console/{self.digest}".encode())
        if has_provider:
            contents[_PAGE] = contents[_PAGE].replace(_ELEMENT, _ELEMENT[:-1] + b" has-provider>")
        self._files = {name: _file(name, content) for name, content in contents.items()}

    def page(self, headers: Headers) -> Response:
        """The page itself."""
        return _answer(self._files[_PAGE], headers, cache=_ASK_AGAIN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application below `/console`."""
        digest, _, name = scope["path"].removeprefix(scope["root_path"]).lstrip("/").partition("/")
        await self._answer_file(digest, name, scope)(scope, receive, send)

    def _answer_file(self, digest: str, name: str, scope: Scope) -> Response:
        file = self._files.get(name)
        if file is None or name == _PAGE or scope["method"] not in ("GET", "HEAD"):
            return problem(HTTPStatus.NOT_FOUND, "there is no such file")
        # During an upgrade, the page may come from another version.
        cache = _ONE_YEAR if digest == self.digest else _ASK_AGAIN
        return _answer(file, Headers(scope=scope), cache=cache)


def add_console(app: FastAPI, *, has_provider: bool = False) -> None:
    """Adds the page at `/`, and its files. With `has_provider`, the page offers a login by it."""
    console = Console(has_provider=has_provider)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def show_console(request: Request) -> Response:
        return console.page(request.headers)

    app.router.routes.append(Mount("/console", app=console))


def _contents(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _contents(entry, f"{name}/")
        elif any(name.endswith(ending) for ending in _TYPES):
            yield name, entry.read_bytes()


def _put_together(texts: Mapping[str, str]) -> dict[str, bytes]:
    """The page, with one sheet and one script in place of those that it names."""
    page = texts[_PAGE]
    sheets = re.findall(_STYLE % "(.+)", page)
    [entry] = re.findall(_MODULE % "(.+)", page)
    for name in sheets:
        page = page.replace(_STYLE % name, _STYLE % _SHEET if name == sheets[0] else "")
    return {
        _PAGE: page.replace(_MODULE % entry, _MODULE % _SCRIPT).encode(),
        _SHEET: "".join(texts[name] for name in sheets).encode(),
        _SCRIPT: one_script(texts, entry).encode(),
    }


def _file(name: str, content: bytes) -> _File:
    media_type = _TYPES[name[name.rindex(".") :]]
    return _File(content, gzip.compress(content, mtime=0), media_type, f'"{_digest_of(content)}"')


def _digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def _answer(file: _File, headers: Headers, *, cache: str) -> Response:
    sent = {**_HEADERS, "Cache-Control": cache, "ETag": file.etag, "Vary": "Accept-Encoding"}
    if file.etag in headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=sent)
    if "gzip" not in headers.get("accept-encoding", ""):
        return Response(file.content, media_type=file.media_type, headers=sent)
    return Response(file.compressed, media_type=file.media_type, headers=sent | {"Content-Encoding": "gzip"})
