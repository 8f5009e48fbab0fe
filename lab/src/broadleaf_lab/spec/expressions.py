"""Boolean expressions over factors, in Python's syntax: `not (lazy and removed)`, `py >= '3.13' or not jit`.

It is parsed with `ast`; only what is listed here is allowed, and nothing of it is ever run as code. `and`, `or` and
`not` remain visible as a tree, so that a part of a configuration can decide them; everything below is an atom with a
test.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from broadleaf_lab.errors import ConstraintError
from broadleaf_lab.spec.factors import Config, Factor, Level

_Value: TypeAlias = Callable[[Config], Any]

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_VERSION = re.compile(r"(?:[^\d\s]*)(\d+(?:\.\d+)*)\S*$")


@dataclass(frozen=True, slots=True)
class Atom:
    """A test over a few factors."""

    names: tuple[str, ...]
    test: Callable[[Config], bool]


@dataclass(frozen=True, slots=True)
class Not:
    item: Node


@dataclass(frozen=True, slots=True)
class All:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    items: tuple[Node, ...]


Node: TypeAlias = Atom | Not | All | AnyOf


def holds(node: Node, config: Config) -> bool | None:
    """Whether the expression is true of a configuration; None if that depends on factors that it does not have."""
    match node:
        case Atom():
            return node.test(config) if all(name in config for name in node.names) else None
        case Not():
            inner = holds(node.item, config)
            return None if inner is None else not inner
        case All() | AnyOf():
            decisive, known = isinstance(node, AnyOf), True
            for item in node.items:
                told = holds(item, config)
                if told is decisive:
                    return decisive
                known = known and told is not None
            return (not decisive) if known else None


def names(node: Node) -> set[str]:
    """The factors that an expression refers to."""
    match node:
        case Atom():
            return set(node.names)
        case Not():
            return names(node.item)
        case All() | AnyOf():
            return {name for item in node.items for name in names(item)}


def parse(text: str, factors: Mapping[str, Factor], where: str) -> Node:
    """The tree of an expression. Raises ConstraintError that names `where` and the part that is wrong."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ConstraintError(f"{where}: {text!r} is not an expression: {error.msg}.", (where,)) from None
    return _Parser(text, factors, where).boolean(tree.body)


class _Parser:
    def __init__(self, text: str, factors: Mapping[str, Factor], where: str) -> None:
        self._text = text
        self._factors = factors
        self._where = where

    def _wrong(self, problem: str) -> ConstraintError:
        return ConstraintError(f"{self._where}: {problem} (in {self._text!r}).", (self._where,))

    def boolean(self, node: ast.expr) -> Node:
        match node:
            case ast.BoolOp(op=ast.And()):
                return All(tuple(self.boolean(value) for value in node.values))
            case ast.BoolOp():
                return AnyOf(tuple(self.boolean(value) for value in node.values))
            case ast.UnaryOp(op=ast.Not()):
                return Not(self.boolean(node.operand))
            case ast.Compare():
                return self._comparison(node)
            case ast.Name():
                factor = self._factor(node.id)
                if not factor.is_bool and not isinstance(factor.default, int | float):
                    raise self._wrong(f"{node.id!r} is neither on nor off: compare it with one of its levels")
                name = node.id
                return Atom((name,), lambda config: bool(config[name]))
            case ast.Constant(value=bool()):
                value = node.value
                return Atom((), lambda config: bool(value))
        raise self._wrong(f"{ast.unparse(node)!r} is neither true nor false")

    def _factor(self, name: str) -> Factor:
        if name not in self._factors:
            import difflib

            close = difflib.get_close_matches(name, self._factors, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise self._wrong(f"there is no factor {name!r}{hint}")
        return self._factors[name]

    def _comparison(self, node: ast.Compare) -> Node:
        parts: list[Node] = []
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            parts.append(self._tried(self._pair(left, op, right), node))
            left = right
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _tried(self, atom: Atom, node: ast.Compare) -> Atom:
        """The atom, once it was shown to work with every level."""
        base = {name: self._factors[name].default for name in atom.names}
        for name in atom.names:
            for level in self._factors[name].levels:
                try:
                    atom.test({**base, name: level})
                except (TypeError, ZeroDivisionError) as error:
                    at = f"{name} = {level!r}"
                    raise self._wrong(f"{ast.unparse(node)!r} cannot be computed for {at}: {error}") from None
        return atom

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Atom:
        found: set[str] = set()
        one = self._value(left, found)
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set):
                raise self._wrong(f"'in' needs levels in parentheses, not {ast.unparse(right)!r}")
            for item in right.elts:
                self._check_level(left, item)
            choices = [self._value(item, found) for item in right.elts]
            wanted = isinstance(op, ast.In)
            return Atom(
                tuple(sorted(found)), lambda config: (one(config) in [choice(config) for choice in choices]) is wanted
            )
        if type(op) not in _COMPARE:
            raise self._wrong(f"{ast.unparse(ast.Compare(left, [op], [right]))!r} is not allowed")
        other = self._value(right, found)
        compare = _COMPARE[type(op)]
        if isinstance(op, _ORDER):
            return Atom(tuple(sorted(found)), lambda config: bool(compare(*self._ordered(one(config), other(config)))))
        self._check_level(left, right)
        self._check_level(right, left)
        return Atom(tuple(sorted(found)), lambda config: bool(compare(one(config), other(config))))

    def _check_level(self, named: ast.expr, value: ast.expr) -> None:
        # A level that does not exist is a typo: the comparison could never be true.
        if isinstance(named, ast.Name) and isinstance(value, ast.Constant):
            factor = self._factor(named.id)
            between = factor.is_numeric and isinstance(value.value, int | float)
            if not between and value.value not in factor.levels:
                known = ", ".join(repr(level) for level in factor.levels)
                raise self._wrong(f"{value.value!r} is not a level of {named.id!r}, which has {known}")

    def _ordered(self, one: Level, other: Level) -> tuple[Any, Any]:
        if isinstance(one, str) != isinstance(other, str):
            raise self._wrong(f"{one!r} and {other!r} cannot be compared with < or >")
        if isinstance(one, str) and isinstance(other, str):
            return self._version(one), self._version(other)
        return one, other

    def _version(self, text: str) -> tuple[int, ...]:
        match = _VERSION.match(text)
        if match is None:
            raise self._wrong(f"{text!r} cannot be compared with < or >: only numbers and versions can")
        return tuple(int(part) for part in match[1].split("."))

    def _value(self, node: ast.expr, found: set[str]) -> _Value:
        match node:
            case ast.Name():
                self._factor(node.id)
                name = node.id
                found.add(name)
                return lambda config: config[name]
            case ast.Constant(value=bool() | int() | float() | str()):
                value = node.value
                return lambda config: value
            case ast.UnaryOp(op=ast.USub()):
                item = self._value(node.operand, found)
                return lambda config: -item(config)
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                apply = _ARITHMETIC[type(node.op)]
                one, other = self._value(node.left, found), self._value(node.right, found)
                return lambda config: apply(one(config), other(config))
        raise self._wrong(f"{ast.unparse(node)!r} is not allowed: use factors, levels, comparisons, and, or, not")
