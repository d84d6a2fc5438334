"""Conditions on episodes: `"success and length > 100"`, or a function.

An expression is parsed by Python's parser and interpreted here, one kind of node at a time; nothing of it is executed.
"""

from __future__ import annotations

import ast
import io
import operator
import tokenize
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

from shard_format.errors import InvalidArgument, did_you_mean, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wshard.catalogue._rows import EpisodeInfo

__all__ = ["FIELDS", "Expression", "Where", "field_of", "parse_where"]

Where: TypeAlias = Union["str | Callable[[EpisodeInfo], object]"]
"""An expression, or a function that says whether an episode is meant."""
FIELDS: Final = ("path", "id", "env_id", "length", "return", "success", "metadata")
"""What every episode has; all other names are fields of its metadata."""
_LONGEST: Final = 1000
_DEEPEST: Final = 20
# Python's parser keeps the word itself.
_RETURN: Final = "return_"
_WORDS: Final = {"true": True, "false": False, "null": None}
_COMPARISONS: Final[Mapping[type, Callable[[Any, Any], object]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_HINT: Final = (
    "write comparisons of id, env_id, path, length, return, success and fields of the metadata, joined by "
    "and, or, not: \"success and length > 100\", \"task in ('reach', 'lift')\""
)


def field_of(episode: EpisodeInfo, name: str) -> Any:  # noqa: ANN401 - any field
    """A fact of an episode by its name, or else a field of its metadata; None if it has none."""
    if name not in FIELDS:
        return episode.metadata.get(name)
    return getattr(episode, _RETURN if name == "return" else name)


def parse_where(where: Where) -> Callable[[EpisodeInfo], object]:
    """A function that says whether an episode is meant; an `Expression` if `where` is a text.

    Raises:
        InvalidArgument: the text is not an expression that is understood.
    """
    if isinstance(where, str):
        return Expression(where)
    if callable(where):
        return where
    raise InvalidArgument("where takes an expression or a function", found=repr(where), hint=_HINT)


class Expression:
    """A condition that was written as text."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise _wrong(text[:40], f"{len(text)} characters", f"at most {_LONGEST}")
        try:
            self._tree = ast.parse(_without_keyword(text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
            raise _wrong(text, str(getattr(error, "msg", error))) from None
        _check(self._tree, text, 0)
        names = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        self._unseen = names - {*FIELDS, *_WORDS, _RETURN}
        self._keys: set[str] = set()

    def __call__(self, episode: EpisodeInfo) -> object:
        """Whether an episode is meant."""
        self.note_fields(episode.metadata)
        return _value(self._tree, episode)

    def note_fields(self, fields: Iterable[str]) -> None:
        """Takes the names of the metadata of an episode, which has them even if the condition was tested elsewhere."""
        self._keys.update(fields)

    def unknown_names(self) -> list[InvalidArgument]:
        """An error for each name of which none of the episodes so far has a field: it is misspelt."""
        return [
            InvalidArgument(
                f"where: no episode has a field {name!r}",
                hint=did_you_mean(name, [*FIELDS, *self._keys]) or _HINT,
            )
            for name in sorted(self._unseen - self._keys)
        ]

    def check_names(self) -> None:
        """Raises the first of `unknown_names`."""
        for error in self.unknown_names():
            raise error


def _without_keyword(text: str) -> str:
    """The text with another word for `return`."""
    lines = io.StringIO(text.strip()).readline
    tokens = [
        (kind, _RETURN if (kind, word) == (tokenize.NAME, "return") else word)
        for kind, word, *_ in tokenize.generate_tokens(lines)
    ]
    return tokenize.untokenize(tokens)


def _check(node: ast.expr, text: str, depth: int) -> None:
    """Raises for every node that `_value` does not know."""
    if depth > _DEEPEST:
        raise _wrong(text, "too many parts inside one another")
    parts: list[ast.expr] = []
    if isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        parts = [node.operand]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, (ast.List, ast.Tuple)):
        parts = node.elts
    elif isinstance(node, ast.Attribute) or (
        isinstance(node, ast.Subscript) and _is_plain(node.slice)
    ):
        parts = [node.value]
    elif not isinstance(node, ast.Name) and not _is_plain(node):
        raise _wrong(text, shorten(ast.unparse(node)), "comparisons joined by and, or, not")
    for part in parts:
        _check(part, text, depth + 1)


def _is_plain(node: ast.expr) -> bool:
    kinds = (str, int, float, type(None))
    return isinstance(node, ast.Constant) and isinstance(node.value, kinds)


def _value(node: ast.expr, episode: EpisodeInfo) -> Any:  # noqa: ANN401 - of any field
    if isinstance(node, ast.BoolOp):
        join = all if isinstance(node.op, ast.And) else any
        return join(_value(part, episode) for part in node.values)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, episode)
        if isinstance(node.op, ast.Not):
            return not value
        return -value if isinstance(value, (int, float)) else None
    if isinstance(node, ast.Compare):
        values = [_value(part, episode) for part in (node.left, *node.comparators)]
        return all(
            _holds(kind, left, right)
            for kind, left, right in zip(node.ops, values[:-1], values[1:], strict=True)
        )
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(part, episode) for part in node.elts]
    if isinstance(node, ast.Name):
        name = "return" if node.id == _RETURN else node.id
        return _WORDS[name] if name in _WORDS else field_of(episode, name)
    if isinstance(node, ast.Constant):
        return node.value
    assert isinstance(node, (ast.Attribute, ast.Subscript))
    inner = _value(node.value, episode)
    key = node.attr if isinstance(node, ast.Attribute) else node.slice.value  # type: ignore[attr-defined] # checked
    return inner.get(key) if isinstance(inner, dict) and isinstance(key, str) else None


def _holds(kind: ast.cmpop, left: Any, right: Any) -> bool:  # noqa: ANN401 - of any field
    """Values that cannot be compared, such as a field that is missing and a number, never fit."""
    try:
        return bool(_COMPARISONS[type(kind)](left, right))
    except TypeError:
        return False


def _wrong(text: str, found: str, expected: str | None = None) -> InvalidArgument:
    problem = f"where: {shorten(text)} is not understood"
    return InvalidArgument(problem, found=found, expected=expected, hint=_HINT)
