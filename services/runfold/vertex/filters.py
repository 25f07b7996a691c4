"""Filters of lists, in the language of AIP-160: `user_id="ann" AND
(create_time>"2030-01-01T00:00:00Z" OR NOT labels.tier:*)`.

Each list defines the fields of its filters: texts, times, and maps of texts. The name of a field
may be in camelCase or in snake_case; keys of maps stay as they are. In this language OR binds
stronger than AND, and two terms side by side are joined by AND.

We found no library that parses this language without a database or a service around it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, assert_never, cast

from pydantic_core import from_json

from runfold.vertex.messages import camel_name
from runfold_schemas.errors import InvalidEventError

Path = tuple[str, ...]
"""The name of a field in snake_case; for a value in a map also its key."""

Kind = Literal["text", "time", "map"]
Operator = Literal["=", "!=", "<", "<=", ">", ">=", ":"]
Operand = str | datetime | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field compared with a value. `:` tests whether a text contains the value, or whether a map
    has the key; with `*`, whether the field has a value at all.
    """

    path: Path
    operator: Operator
    value: Operand


@dataclass(frozen=True, slots=True)
class All:
    """All parts match. Without parts, everything matches."""

    parts: tuple["Filter", ...] = ()


@dataclass(frozen=True, slots=True)
class Some:
    """At least one of the parts matches."""

    parts: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not match."""

    part: "Filter"


Filter = Comparison | All | Some | Not

_LENGTH_MAX: Final = 2_000
"""The longest filter, in characters. Parsing and matching it takes time in proportion."""

_DEPTH_MAX: Final = 50

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign><=|>=|!=|[=<>:().])|(?P<word>[^\s"'()=<>!:.]+))""",
    re.DOTALL,
)

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


def parse_filter(text: str | None, fields: Mapping[str, Kind]) -> Filter:
    """The filter; without a text, a filter that matches everything. The names in `fields` are in
    snake_case.

    Raises `InvalidEventError` with the position of the fault, and for a filter that is too long.
    """
    if text and len(text) > _LENGTH_MAX:
        raise InvalidEventError(
            f"filter: it has {len(text):,} characters; {_LENGTH_MAX:,} are allowed", field="filter"
        )
    parser = _Parser(text or "", fields)
    return parser.expression_to_end() if parser.tokens else All()


def matches(filter_: Filter, get: Callable[[Path], Any]) -> bool:
    """Whether the filter matches the values that `get` returns for paths: texts, times, maps, or
    None for a field without a value, which only `!=` matches.
    """
    match filter_:
        case Comparison():
            return _compare(filter_, get(filter_.path))
        case All():
            return all(matches(part, get) for part in filter_.parts)
        case Some():
            return any(matches(part, get) for part in filter_.parts)
        case Not():
            return not matches(filter_.part, get)
        case _:
            assert_never(filter_)


def equalities(filter_: Filter) -> dict[Path, Operand]:
    """Fields and values that every match has, so that an index can find candidates. Not every item
    with these values need match.
    """
    match filter_:
        case Comparison(path, "=", value):
            return {path: value}
        case All(parts):
            return {path: value for part in parts for path, value in equalities(part).items()}
        case _:
            return {}


def label_equalities(filter_: Filter) -> dict[str, str]:
    """The labels among the `equalities`."""
    return {
        path[1]: str(value)
        for path, value in equalities(filter_).items()
        if path[0] == "labels" and len(path) > 1
    }


def _compare(comparison: Comparison, actual: Any) -> bool:
    operator, value = comparison.operator, comparison.value
    if operator == "!=":
        return bool(actual != value)
    if actual is None:
        return False
    match operator:
        case "=":
            return bool(actual == value)
        case ":":
            return (value == "*" and bool(actual)) or (isinstance(value, str) and value in actual)
        case "<":
            return bool(actual < value)
        case "<=":
            return bool(actual <= value)
        case ">":
            return bool(actual > value)
        case ">=":
            return bool(actual >= value)
        case _:
            assert_never(operator)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Parser:
    """A recursive descent over the tokens."""

    def __init__(self, text: str, fields: Mapping[str, Kind]) -> None:
        self.tokens: Sequence[_Token] = list(_tokens(text))
        self._fields = fields
        self._position = 0
        self._depth = 0
        self._end = _Token("end", "the end", len(text))

    def expression_to_end(self) -> Filter:
        expression = self._expression()
        if self._next_token.kind != "end":
            raise _unexpected(self._next_token)
        return expression

    @property
    def _next_token(self) -> _Token:
        return self.tokens[self._position] if self._position < len(self.tokens) else self._end

    def _take(self) -> _Token:
        token = self._next_token
        self._position += 1
        return token

    def _expression(self) -> Filter:
        parts = [self._factor()]
        while self._next_token.kind != "end" and self._next_token.text != ")":
            if _is(self._next_token, "AND"):
                self._take()
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _factor(self) -> Filter:
        parts = [self._term()]
        while _is(self._next_token, "OR"):
            self._take()
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def _term(self) -> Filter:
        if _is(self._next_token, "NOT"):
            self._take()
            return Not(self._simple())
        return self._simple()

    def _simple(self) -> Filter:
        if not _is(self._next_token, "("):
            return self._comparison()
        opened = self._take()
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _error(f"nested deeper than {_DEPTH_MAX} levels", opened)
        expression = self._expression()
        if not _is(self._next_token, ")"):
            raise _error("the parenthesis is not closed", opened)
        self._take()
        self._depth -= 1
        return expression

    def _comparison(self) -> Comparison:
        begin = self._next_token
        path = self._path()
        kind = self._kind(path, begin)
        sign = self._take()
        if sign.kind != "sign" or sign.text in "().":
            raise _error("an operator is expected", sign)
        operator = cast(Operator, sign.text)
        return Comparison(path, operator, self._value(kind, operator))

    def _path(self) -> Path:
        first = self._take()
        if first.kind != "word":
            raise _unexpected(first)
        steps = []
        while _is(self._next_token, "."):
            self._take()
            step = self._take()
            if step.kind not in ("word", "text"):
                raise _unexpected(step)
            steps.append(_plain(step))
        return (_snake(first.text), ".".join(steps)) if steps else (_snake(first.text),)

    def _kind(self, path: Path, begin: _Token) -> Kind:
        kind = self._fields.get(path[0])
        if kind is None or (len(path) > 1 and kind != "map"):
            names = ", ".join(name + (".KEY" if kind == "map" else "") for name, kind in self._fields.items())
            raise _error(f"{'.'.join(path)} is not a field to filter by; use one of {names}", begin)
        return "text" if len(path) > 1 else kind

    def _value(self, kind: Kind, operator: Operator) -> Operand:
        token = self._value_token()
        if token.kind not in ("word", "text"):
            raise _error("a value is expected", token)
        text = _plain(token)
        match kind:
            case "text":
                return text
            case "time":
                return _time(text, operator, token)
            case "map":
                return _map(text, operator, token)
            case _:
                assert_never(kind)

    def _value_token(self) -> _Token:
        """One token; of a time or a number without quotes, all tokens that it was split into."""
        first = self._take()
        if first.kind != "word":
            return first
        text = first.text
        while (
            self._next_token.text in (".", ":") or self._next_token.kind == "word"
        ) and self._next_token.position == first.position + len(text):
            text += self._take().text
        return first._replace(text=text)


def _tokens(text: str) -> Iterator[_Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        token = _TOKEN.match(text, position)
        if token is None:
            begin = position + len(text[position:]) - len(text[position:].lstrip())
            raise _error(
                "the quote is not closed" if text[begin] in "\"'" else "this character is not allowed here",
                _Token("", text[begin], begin),
            )
        kind = str(token.lastgroup)
        yield _Token(kind, token[kind], token.start(kind))
        position = token.end()


def _is(token: _Token, text: str) -> bool:
    return token.text == text and token.kind != "text"


def _plain(token: _Token) -> str:
    """The token without quotes; a backslash stands for the character after it."""
    return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL) if token.kind == "text" else token.text


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda letter: "_" + letter[1].lower(), camel_name(name))


def _time(text: str, operator: Operator, token: _Token) -> datetime:
    if operator == ":" or not _TIME.fullmatch(text):
        raise _error('compare a time with a text such as "2030-01-02T03:04:05Z"', token)
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise _error(str(error), token) from error


def _map(text: str, operator: Operator, token: _Token) -> str | Mapping[str, Any]:
    if operator == ":":
        return text
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        value = None
    if operator not in ("=", "!=") or not isinstance(value, dict):
        raise _error("compare a whole map by = or != with a JSON object in quotes", token)
    return value


def _unexpected(token: _Token) -> InvalidEventError:
    return _error("a field is expected", token)


def _error(message: str, token: _Token) -> InvalidEventError:
    return InvalidEventError(f"filter: at {token.position}, {token.text!r}: {message}", field="filter")
