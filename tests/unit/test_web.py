"""What every HTTP service of ours answers, whatever it serves."""

import re
from collections.abc import AsyncIterator
from urllib.parse import urljoin

import httpx
import pytest

from runfold.http.app import new_app


async def ready() -> None:
    """Always."""


@pytest.fixture
async def web() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(new_app("any", ready=ready))
    async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
        yield client


async def test_the_root_leads_to_the_documentation(web: httpx.AsyncClient):
    answer = await web.get("/", follow_redirects=True)

    assert answer.url.path == "/docs"
    assert answer.status_code == 200


async def test_the_documentation_comes_from_this_server_alone(web: httpx.AsyncClient):
    page = (await web.get("/docs")).text

    addresses = re.findall(r"""(?:href|src)="([^"]+)"|url: ['"]([^'"]+)['"]""", page)
    named = [either or other for either, other in addresses]
    assert len(named) == 4
    assert "//" not in "".join(named)
    for address in named:
        answer = await web.get(urljoin("/docs", address))
        assert answer.status_code == 200, address
        assert answer.content
    assert not re.findall(r"https?://", page)


async def test_the_documentation_works_below_the_path_of_a_gateway(web: httpx.AsyncClient):
    page = (await web.get("/docs")).text

    assert '"/' not in page
    assert "'/" not in page


async def test_a_style_sheet_of_the_documentation_names_no_other_host(web: httpx.AsyncClient):
    style = (await web.get("/docs/assets/swagger-ui.css")).text

    assert not re.findall(r"url\((?!['\"]?data:)", style)
    assert "@import" not in style
