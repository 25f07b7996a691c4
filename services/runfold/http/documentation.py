"""The page `/docs`: Swagger UI on the application's OpenAPI document. All its files come from this
server, so the page works without the internet, and no script stands in the page itself.
"""

from html import escape
from importlib.resources import files
from typing import Final

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

_ASSETS: Final = "docs/assets"

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="{assets}/favicon.png">
<link rel="stylesheet" href="{assets}/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{assets}/swagger-ui-bundle.js"></script>
<script src="{assets}/start.js"></script>
</body>
</html>
"""

_START: Final = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
  // Otherwise Swagger UI may send the document to a validator on another host.
  validatorUrl: null,
});
"""

_DIRECTIVES: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    # A page of another site could lead the reader's clicks to this one.
    "frame-ancestors 'none'",
)
_HEADERS: Final = {"Content-Security-Policy": "; ".join(_DIRECTIVES), "X-Content-Type-Options": "nosniff"}


def add_documentation(app: FastAPI) -> None:
    """Adds the page and its files. All addresses are relative, because a gateway may serve the
    application under a path of its own.
    """

    @app.get(f"/{_ASSETS}/start.js", include_in_schema=False)
    async def start_docs() -> Response:
        return Response(_START, media_type="text/javascript", headers=_HEADERS)

    app.mount(f"/{_ASSETS}", StaticFiles(directory=str(files("fastapi_offline") / "static")))

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    async def show_docs() -> HTMLResponse:
        return HTMLResponse(_PAGE.format(title=escape(app.title), assets=_ASSETS), headers=_HEADERS)


def lead_to_documentation(app: FastAPI) -> None:
    """Adds a redirect from `/` to the page."""

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def redirect_to_docs() -> RedirectResponse:
        return RedirectResponse("docs")
