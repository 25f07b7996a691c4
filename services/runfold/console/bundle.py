"""Makes one script of the console's modules, when the API starts.

A browser would ask for each of the 80 modules by itself. That takes most of the time until the
first paint, above all over a network.

The modules keep to a few forms of `import` and `export`, each at the beginning of a line, so no
parser of JavaScript is needed: each module becomes a function that returns its exports.
"""

import re
from collections.abc import Mapping
from posixpath import dirname, join, normpath
from typing import Final

_IMPORT: Final = re.compile(r'^import (?:(\{[^}]*\}) from )?"([^"]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(
    r"^export (?=(?:async function|function\*?|async function\*|class|const) (\w+))", re.MULTILINE
)
_OTHER: Final = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def one_script(modules: Mapping[str, str], entry: str) -> str:
    """One module with the contents of `entry` and of all modules that it imports, in the order in
    which a browser runs them.

    Raises `ValueError` for modules that import each other, and for another form of import or
    export.
    """
    functions: dict[str, str] = {}
    _add(functions, modules, entry, ())
    return "".join(functions.values())


def _add(
    functions: dict[str, str], modules: Mapping[str, str], name: str, importers: tuple[str, ...]
) -> None:
    if name in importers:
        raise ValueError(" imports ".join((*importers, name)))
    for _, path in _IMPORT.findall(modules[name]):
        if (imported := _named(name, path)) not in functions:
            _add(functions, modules, imported, (*importers, name))
    functions[name] = _function(name, modules[name])


def _function(name: str, text: str) -> str:
    def values(statement: re.Match[str]) -> str:
        names, path = statement.groups()
        return f"const {names.replace(' as ', ': ')} = {_variable(_named(name, path))};" if names else ""

    exports = ", ".join(_EXPORT.findall(text))
    body = _EXPORT.sub("", _IMPORT.sub(values, text))
    if (other := _OTHER.search(body)) is not None:
        raise ValueError(f"{name}: {other.group()}")
    return f"// {name}\nconst {_variable(name)} = (() => {{\n{body}return {{ {exports} }};\n}})();\n"


def _named(importer: str, path: str) -> str:
    return normpath(join(dirname(importer), path))


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name)
