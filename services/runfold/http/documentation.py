"""The page `/docs`: Swagger UI on the application's OpenAPI document. All its files come from this
server, so the page works without the internet.
"""

from importlib.resources import files
from typing import Final

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles

_ASSETS: Final = "docs/assets"


def add_documentation(app: FastAPI) -> None:
    """Adds the page, its files, and a redirect from `/`. All addresses are relative, because a
    gateway may serve the application under a path of its own.
    """
    app.mount(f"/{_ASSETS}", StaticFiles(directory=str(files("fastapi_offline") / "static")))

    @app.get("/", include_in_schema=False)
    async def lead_to_docs() -> RedirectResponse:
        return RedirectResponse("docs")

    @app.get("/docs", include_in_schema=False)
    async def show_docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=app.title,
            swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS}/favicon.png",
            # Without this, Swagger UI may send the document to a validator on another host.
            swagger_ui_parameters={"validatorUrl": None},
        )
