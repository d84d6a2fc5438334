"""Conditions on episodes, such as `length > 100 and success`: read as Python, run as nothing else.

Allowed are names, numbers, strings, lists, comparisons, `in`, `and`, `or`, `not`, `x if c else y` and arithmetic
with numbers. A name that an episode does not know is None, and a comparison with None is false.
"""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Facts: TypeAlias = Mapping[str, Any]
    Value: TypeAlias = Callable[[Facts], Any]

__all__ = ["Condition"]

# Enough for any condition, too little to exhaust the parser.
_LONGEST: Final = 10_000
_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
_ARITHMETIC: Final[dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}
_CONSTANTS: Final = (str, int, float, bool, type(None))


class Condition:
    """A condition that holds for some episodes.

    Args:
        text: the condition.

    Raises:
        InvalidArgument: it is none; says what is wrong and where.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise InvalidArgument(
                "a condition is a short text",
                expected=f"at most {_LONGEST} characters",
                found=f"{len(text)}",
            )
        self.text = text
        self.names: set[str] = set()
        """What it asks for."""
        try:
            parsed = ast.parse(text.strip(), mode="eval")
            self._value = self._compile(parsed.body)
        except SyntaxError as error:
            # At the end of the text some versions give no place.
            place = error.offset or len(text.strip()) + 1
            raise self._wrong(error.msg, place) from None
        except (ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise self._wrong(str(error) or "it is nested too deeply", None) from None

    def holds(self, facts: Facts) -> bool:
        """Whether it holds for an episode.

        Raises:
            InvalidArgument: its values cannot be compared or calculated with.
        """
        return bool(self._value(facts))

    def _wrong(self, problem: str, column: int | None, hint: str | None = None) -> InvalidArgument:
        place = "" if column is None else f", at character {column}"
        return InvalidArgument(
            f"this is no condition: {problem}{place}", found=repr(self.text), hint=hint
        )

    def _refused(self, node: ast.expr, what: str) -> InvalidArgument:
        hint = "conditions compare fields, such as: length > 100 and task in ['push', 'pull']"
        return self._wrong(f"{what} is not allowed", node.col_offset + 1, hint)

    # --- from syntax to functions

    def _compile(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=value) if isinstance(value, _CONSTANTS):
                return lambda _: value
            case ast.Name(id=name):
                self.names.add(name)
                return lambda facts: facts.get(name)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                parts = [self._compile(item) for item in items]
                return lambda facts: [part(facts) for part in parts]
            case ast.BoolOp(op=ast.And(), values=values):
                parts = [self._compile(value) for value in values]
                return lambda facts: all(part(facts) for part in parts)
            case ast.BoolOp(values=values):
                parts = [self._compile(value) for value in values]
                return lambda facts: any(part(facts) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._compile(operand)
                return lambda facts: not inner(facts)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                zero = ast.copy_location(ast.Constant(0), node)
                op = ast.Sub() if isinstance(sign, ast.USub) else ast.Add()
                return self._arithmetic(node, op, zero, operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._arithmetic(node, op, left, right)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen, first, second = map(self._compile, (test, body, orelse))
                return lambda facts: first(facts) if chosen(facts) else second(facts)
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._chain([left, *others], ops)
        raise self._refused(node, f"{type(node).__name__!r} ({ast.unparse(node)[:40]})")

    def _chain(self, nodes: list[ast.expr], ops: list[ast.cmpop]) -> Value:
        values = [self._compile(node) for node in nodes]
        tests = [
            self._comparison(node, op, right)
            for node, op, right in zip(nodes, ops, nodes[1:], strict=False)
        ]

        def compare(facts: Facts) -> bool:
            left = values[0](facts)
            for value, test in zip(values[1:], tests, strict=True):
                right = value(facts)
                if not test(left, right):
                    return False
                left = right
            return True

        return compare

    def _comparison(
        self, node: ast.expr, op: ast.cmpop, right_node: ast.expr
    ) -> Callable[[Any, Any], bool]:
        if isinstance(op, (ast.Is, ast.IsNot)):
            if not (isinstance(right_node, ast.Constant) and right_node.value is None):
                raise self._refused(right_node, "'is' with anything but None")
            wanted = isinstance(op, ast.Is)
            return lambda left, _: (left is None) is wanted
        if type(op) not in _COMPARISONS:  # `in`, or `not in`
            wanted = isinstance(op, ast.In)

            def contains(left: Any, right: Any) -> bool:  # noqa: ANN401 - any JSON
                if left is None or right is None:
                    return False
                if isinstance(right, str) and not isinstance(left, str):
                    raise self._cannot(node, f"look for {left!r} in {right!r}")
                if not isinstance(right, (str, list)):
                    raise self._cannot(node, f"look into {right!r}")
                return (left in right) is wanted

            return contains
        sign, function = _COMPARISONS[type(op)]

        def compare(left: Any, right: Any) -> bool:  # noqa: ANN401 - any JSON
            if left is None or right is None:
                return False
            try:
                return bool(function(left, right))
            except TypeError:
                raise self._cannot(node, f"compare {left!r} {sign} {right!r}") from None

        return compare

    def _arithmetic(
        self, node: ast.expr, op: ast.operator, left: ast.expr, right: ast.expr
    ) -> Value:
        sign, function = _ARITHMETIC[type(op)]
        first, second = self._compile(left), self._compile(right)

        def calculate(facts: Facts) -> Any:  # noqa: ANN401 - a number or None
            a, b = first(facts), second(facts)
            if a is None or b is None:
                return None
            # Not for text and lists: those grow by multiplication.
            if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
                raise self._cannot(node, f"calculate {a!r} {sign} {b!r}")
            try:
                return function(a, b)
            except ArithmeticError as error:
                raise self._cannot(node, f"calculate {a!r} {sign} {b!r} ({error})") from None

        return calculate

    def _cannot(self, node: ast.expr, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"the condition cannot {what[:120]}, at character {node.col_offset + 1}",
            found=repr(self.text),
        )
