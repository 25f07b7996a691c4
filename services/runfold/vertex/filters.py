"""Filters of lists, in the language of AIP-160: `user_id="ann" AND
(create_time>"2030-01-01T00:00:00Z" OR NOT labels.tier:*)`.

What a list can be filtered by is its own to say: a text, a time, or a map of texts. Fields come in
either spelling, the keys of maps as they are. As that language has it, OR binds stronger than AND,
and two terms side by side are both meant.

No library that we found parses this without a database or a service around it.
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
"""A field by its name in snake_case, and the key in it where it is a map."""

Kind = Literal["text", "time", "map"]
Operator = Literal["=", "!=", "<", "<=", ">", ">=", ":"]
Operand = str | datetime | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field against a value. `:` asks whether a text has it in it, whether a map has the key, and
    with `*` whether there is anything at all.
    """

    path: Path
    operator: Operator
    value: Operand


@dataclass(frozen=True, slots=True)
class All:
    """All of them hold; so it holds of everything if there are none."""

    parts: tuple["Filter", ...] = ()


@dataclass(frozen=True, slots=True)
class Some:
    """One of them holds at least."""

    parts: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """It does not hold."""

    part: "Filter"


Filter = Comparison | All | Some | Not

_DEPTH_MAX: Final = 50

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign><=|>=|!=|[=<>:().])|(?P<word>[^\s"'()=<>!:.]+))""",
    re.DOTALL,
)

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


def parse_filter(text: str | None, fields: Mapping[str, Kind]) -> Filter:
    """The filter; one that holds of everything where there is no text. `fields` are by their names
    in snake_case.

    Raises `InvalidEventError` with the position of what is wrong.
    """
    parser = _Parser(text or "", fields)
    return parser.expression_to_end() if parser.tokens else All()


def matches(filter_: Filter, get: Callable[[Path], Any]) -> bool:
    """Whether it holds of what `get` gives by paths: texts, times, maps, or None for what is not
    there, of which nothing but `!=` holds.
    """
    match filter_:
        case Comparison():
            return _compares(filter_, get(filter_.path))
        case All():
            return all(matches(part, get) for part in filter_.parts)
        case Some():
            return any(matches(part, get) for part in filter_.parts)
        case Not():
            return not matches(filter_.part, get)
        case _:
            assert_never(filter_)


def equalities(filter_: Filter) -> dict[Path, Operand]:
    """The values that fields have in all that it holds of, so that an index can find those. It may
    hold of less than that.
    """
    match filter_:
        case Comparison(path, "=", value):
            return {path: value}
        case All(parts):
            return {path: value for part in parts for path, value in equalities(part).items()}
        case _:
            return {}


def _compares(comparison: Comparison, found: Any) -> bool:
    operator, value = comparison.operator, comparison.value
    if operator == "!=":
        return bool(found != value)
    if found is None:
        return False
    match operator:
        case "=":
            return bool(found == value)
        case ":":
            return (value == "*" and bool(found)) or (isinstance(value, str) and value in found)
        case "<":
            return bool(found < value)
        case "<=":
            return bool(found <= value)
        case ">":
            return bool(found > value)
        case ">=":
            return bool(found >= value)
        case _:
            assert_never(operator)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Parser:
    """Takes tokens from the first to the last."""

    def __init__(self, text: str, fields: Mapping[str, Kind]) -> None:
        self.tokens: Sequence[_Token] = list(_tokens(text))
        self._fields = fields
        self._next = 0
        self._depth = 0
        self._end = _Token("end", "the end", len(text))

    def expression_to_end(self) -> Filter:
        found = self._expression()
        if self._here.kind != "end":
            raise _unexpected(self._here)
        return found

    @property
    def _here(self) -> _Token:
        return self.tokens[self._next] if self._next < len(self.tokens) else self._end

    def _take(self) -> _Token:
        token = self._here
        self._next += 1
        return token

    def _expression(self) -> Filter:
        parts = [self._factor()]
        while self._here.kind != "end" and self._here.text != ")":
            if _is(self._here, "AND"):
                self._take()
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _factor(self) -> Filter:
        parts = [self._term()]
        while _is(self._here, "OR"):
            self._take()
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def _term(self) -> Filter:
        if _is(self._here, "NOT"):
            self._take()
            return Not(self._simple())
        return self._simple()

    def _simple(self) -> Filter:
        if not _is(self._here, "("):
            return self._comparison()
        opened = self._take()
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _wrong(f"nested deeper than {_DEPTH_MAX} levels", opened)
        found = self._expression()
        if not _is(self._here, ")"):
            raise _wrong("the parenthesis is not closed", opened)
        self._take()
        self._depth -= 1
        return found

    def _comparison(self) -> Comparison:
        begin = self._here
        path = self._path()
        kind = self._kind(path, begin)
        sign = self._take()
        if sign.kind != "sign" or sign.text in "().":
            raise _wrong("an operator is expected", sign)
        operator = cast(Operator, sign.text)
        return Comparison(path, operator, self._value(kind, operator))

    def _path(self) -> Path:
        first = self._take()
        if first.kind != "word":
            raise _unexpected(first)
        steps = []
        while _is(self._here, "."):
            self._take()
            step = self._take()
            if step.kind not in ("word", "text"):
                raise _unexpected(step)
            steps.append(_plain(step))
        return (_snake(first.text), ".".join(steps)) if steps else (_snake(first.text),)

    def _kind(self, path: Path, begin: _Token) -> Kind:
        kind = self._fields.get(path[0])
        if kind is None or (len(path) > 1 and kind != "map"):
            known = ", ".join(name + (".KEY" if kind == "map" else "") for name, kind in self._fields.items())
            raise _wrong(f"{'.'.join(path)} is not a field to filter by; those are {known}", begin)
        return "text" if len(path) > 1 else kind

    def _value(self, kind: Kind, operator: Operator) -> Operand:
        token = self._value_token()
        if token.kind not in ("word", "text"):
            raise _wrong("a value is expected", token)
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
        """One token, or as many as a time or a number without quotes is taken apart into."""
        first = self._take()
        if first.kind != "word":
            return first
        text = first.text
        while (
            self._here.text in (".", ":") or self._here.kind == "word"
        ) and self._here.position == first.position + len(text):
            text += self._take().text
        return first._replace(text=text)


def _tokens(text: str) -> Iterator[_Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            begin = position + len(text[position:]) - len(text[position:].lstrip())
            raise _wrong(
                "it is not closed" if text[begin] in "\"'" else "it means nothing",
                _Token("", text[begin], begin),
            )
        kind = str(found.lastgroup)
        yield _Token(kind, found[kind], found.start(kind))
        position = found.end()


def _is(token: _Token, text: str) -> bool:
    return token.text == text and token.kind != "text"


def _plain(token: _Token) -> str:
    """What is between the quotes, if there are any: a sign behind a backslash is itself."""
    return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL) if token.kind == "text" else token.text


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: "_" + found[1].lower(), camel_name(name))


def _time(text: str, operator: Operator, token: _Token) -> datetime:
    if operator == ":" or not _TIME.fullmatch(text):
        raise _wrong('a time is compared, with a text such as "2030-01-02T03:04:05Z"', token)
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise _wrong(str(error), token) from error


def _map(text: str, operator: Operator, token: _Token) -> str | Mapping[str, Any]:
    if operator == ":":
        return text
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        value = None
    if operator not in ("=", "!=") or not isinstance(value, dict):
        raise _wrong("a whole map is compared by = or != with a JSON object in quotes", token)
    return value


def _unexpected(token: _Token) -> InvalidEventError:
    return _wrong("a field is expected", token)


def _wrong(message: str, token: _Token) -> InvalidEventError:
    return InvalidEventError(f"filter: at {token.position}, {token.text!r}: {message}", field="filter")
