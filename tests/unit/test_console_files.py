"""The files of the console: how they are served, and what no script in them does."""

import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from runfold.console import pages
from runfold.console.bundle import one_script
from runfold.console.pages import CONTENT_SECURITY_POLICY, add_console

STATIC = Path(pages.__file__).parent / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
STYLES = sorted(STATIC.rglob("*.css"))

LINES_MAX = 450
COLUMNS_MAX = 110

SINKS = (
    *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "setHTMLUnsafe", "srcdoc"),
    *("DOMParser", "createContextualFragment", "eval(", "new Function", "javascript:", "unsafe-inline"),
    *('setAttribute("style"', "cssText", "await import(", "XMLHttpRequest", "postMessage"),
)
"""What could make elements or code of a text, or speak to others."""


@pytest.fixture
def web() -> httpx.AsyncClient:
    app = FastAPI(openapi_url=None)
    add_console(app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://any")


@pytest.mark.parametrize("path", [*SCRIPTS, *STYLES], ids=lambda path: path.name)
def test_no_file_makes_elements_of_text_or_asks_another_host(path: Path):
    text = path.read_text()

    assert [sink for sink in SINKS if sink in text] == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert "@import" not in text
    assert path.suffix == ".js" or "url(" not in text


@pytest.mark.parametrize("path", [*SCRIPTS, *STYLES], ids=lambda path: path.name)
def test_every_file_is_short_and_says_what_it_is_for(path: Path):
    lines = path.read_text().splitlines()

    assert len(lines) <= LINES_MAX
    assert [line for line in lines if len(line) > COLUMNS_MAX] == []
    assert lines[0].startswith(("/*", "//"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_exported_function_says_what_it_does(path: Path):
    for before in re.findall(
        r"(.*)\n^export (?:async )?(?:function|class|const)", path.read_text(), re.MULTILINE
    ):
        assert before.endswith("*/"), f"{path.name}: {before}"


async def test_the_page_names_its_own_files_only_and_all_of_them_exist(web: httpx.AsyncClient):
    page = await web.get("/")

    addresses = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    files = [address for address in addresses if address.startswith("console/")]
    assert {*addresses} - {*files} == {"#main", "docs"}
    assert {file.rpartition("/")[2] for file in files} >= {"console.css", "console.js", "icon.svg"}
    assert len(files) < 6
    for address in files:
        answer = await web.get(f"/{address}")
        assert answer.status_code == 200, address
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.content


async def test_the_script_has_each_module_once_and_after_what_it_imports(web: httpx.AsyncClient):
    modules = [path for path in SCRIPTS if path.name != "theme_at_start.js"]

    script = (await web.get("/console/any/console.js")).text

    names = [line[3:] for line in script.splitlines() if re.fullmatch(r"// js/\S+\.js", line)]
    assert sorted(names) == sorted(path.relative_to(STATIC).as_posix() for path in modules)
    assert names[-1] == "js/main.js"
    assert names.index("js/dom.js") < names.index("js/run/timeline_list.js") < names.index("js/views/run.js")
    assert re.findall("^(?:import|export) .*", script, re.MULTILINE) == []


async def test_the_style_sheet_has_all_sheets_in_the_order_of_the_page(web: httpx.AsyncClient):
    page = (STATIC / "index.html").read_text()
    sheets = [STATIC / name for name in re.findall(r'CONSOLE/(css/\S+)"', page)]

    sheet = (await web.get("/console/any/console.css")).text

    assert sorted(sheets) == STYLES
    assert sheet == "".join(path.read_text() for path in sheets)


def test_modules_become_functions_that_return_their_exports():
    modules = {
        "a/main.js": 'import "../b.js";\nimport { one as uno } from "../c.js";\n',
        "b.js": "export const B = 1;\n",
        "c.js": "export async function one() {}\nexport class Two {}\n",
    }

    script = one_script(modules, "a/main.js")

    assert script.split("\n// ") == [
        "// b.js\nconst b_js = (() => {\nconst B = 1;\nreturn { B };\n})();",
        "c.js\nconst c_js = (() => {\nasync function one() {}\nclass Two {}\nreturn { one, Two };\n})();",
        "a/main.js\nconst a_main_js = (() => {\n\nconst { one: uno } = c_js;\nreturn {  };\n})();\n",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "export default 1;\n",
        "export { a };\n",
        "export let a = 1;\n",
        'import * as a from "./b.js";\n',
        'import a from "./b.js";\n',
    ],
)
def test_other_forms_of_modules_are_refused(text: str):
    with pytest.raises(ValueError, match=r"main\.js: (import|export)"):
        one_script({"main.js": text, "b.js": ""}, "main.js")


def test_modules_that_import_each_other_are_refused():
    modules = {"a.js": 'import "./b.js";\n', "b.js": 'import "./a.js";\n'}

    with pytest.raises(ValueError, match=r"a\.js imports b\.js imports a\.js"):
        one_script(modules, "a.js")


async def test_every_answer_has_the_strict_policy(web: httpx.AsyncClient):
    page = await web.get("/")
    [script] = re.findall(r'src="(\S+/console.js)"', page.text)

    for answer in (page, await web.get(f"/{script}")):
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY


async def test_a_page_that_has_not_changed_is_not_sent_again(web: httpx.AsyncClient):
    first = await web.get("/")

    again = await web.get("/", headers={"If-None-Match": first.headers["etag"]})

    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")


def test_another_script_has_another_address(monkeypatch: pytest.MonkeyPatch):
    """Browsers keep a script for a year. Its address must follow how it is put together."""
    before = pages.Console().digest
    monkeypatch.setattr(pages, "one_script", lambda texts, entry: f"{one_script(texts, entry)}\n")

    assert pages.Console().digest != before


async def test_a_probe_of_the_page_is_answered_as_a_read(web: httpx.AsyncClient):
    probe, read = await web.head("/"), await web.get("/")

    assert (probe.status_code, probe.headers["etag"]) == (200, read.headers["etag"])


async def test_a_file_of_another_version_is_answered_for_now(web: httpx.AsyncClient):
    """During an upgrade, the page may come from a service of another version."""
    other = await web.get("/console/0123456789/js/main.js")

    assert other.status_code == 200
    assert other.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["/console/", "/console/x", "/console/x/", "/console/x/index.html", "/console/x/../pages.py"]
)
async def test_nothing_else_is_a_file(web: httpx.AsyncClient, path: str):
    assert (await web.get(path)).status_code == 404
