"""How `make docs` builds the site. The whole repository is its source, so that links from README.md
and the other pages beside the code are checked together with those of `docs/`.
"""

from sphinx.application import Sphinx

project = "Runfold"
author = "the authors of Runfold"
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "benchmarks/README.md",
    "deploy/README.md",
    "docs/*.md",
    "examples/*/README.md",
    "tests/histories/README.md",
    "tests/providers/README.md",
]
exclude_patterns = [".*", "build", "dist"]

extensions = ["myst_parser"]
nitpicky = True
# Anchors are named as GitHub names them, so that a link works in both places.
myst_heading_anchors = 4
html_title = "Runfold"
html_theme_options = {"description": "A memory backend for AI agents", "fixed_sidebar": True}

CONTENTS = """
```{toctree}
:hidden:
publish
providers
moving
provider-cases
sessions
memories
vertex
read
console
forking
access
tenants
encryption
evidence
erasure
archive
observe
operate
```

```{toctree}
:hidden:
:caption: In the repository
/README
/ARCHITECTURE
/SECURITY
/deploy/README
/benchmarks/README
/examples/adk_support_agent/README
/examples/go_producer/README
/tests/histories/README
/tests/providers/README
/CONTRIBUTING
/CHANGELOG
```
"""


def setup(app: Sphinx) -> None:
    """The table of contents is added here, because GitHub would show it as a block of code."""
    app.connect("source-read", _add_contents)


def _add_contents(app: Sphinx, name: str, text: list[str]) -> None:
    if name == app.config.root_doc:
        text[0] += CONTENTS
