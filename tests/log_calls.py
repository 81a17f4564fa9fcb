"""Which calls write a log line, and which of them would write an exception as Python writes it down
(`ClassName('arg', 5)`) instead of in words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
ERRORLIKE = re.compile(r"(^|[._])(error|failure|refusal|exception\(\)|reason_error|__cause__)$")
PLACEHOLDER = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?([a-zA-Z%])")


def caught_names(tree: ast.AST) -> frozenset[str]:
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name
    )


def is_error(node: ast.expr, caught: frozenset[str]) -> bool:
    """Whether an expression is an exception, as far as its name tells."""
    if isinstance(node, ast.Name) and node.id in caught:
        return True
    if isinstance(node, ast.BoolOp):
        return any(is_error(value, caught) for value in node.values)
    return bool(ERRORLIKE.search(ast.unparse(node)))


def shown_errors(tree: ast.AST) -> Iterator[tuple[ast.Call, int]]:
    """Each log call with the number of an argument that is an exception under %r."""
    caught = caught_names(tree)
    for call in ast.walk(tree):
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
            or call.func.attr not in LEVELS
        ):
            continue
        if ast.unparse(call.func.value) not in ("log", "_log", "logging"):
            continue
        first = 1 if call.func.attr == "log" else 0
        text = call.args[first] if len(call.args) > first else None
        form = text.value if isinstance(text, ast.Constant) else None
        kinds = [kind for kind in PLACEHOLDER.findall(form) if kind != "%"] if isinstance(form, str) else []
        for place, kind in enumerate(kinds, first + 1):
            if kind == "r" and place < len(call.args) and is_error(call.args[place], caught):
                yield call, place


def repr_of_errors(tree: ast.AST) -> list[tuple[int, str]]:
    """By line: exceptions under %r in log calls, and under !r in any text that is put together."""
    caught = caught_names(tree)
    found = [(call.lineno, ast.unparse(call.args[place])) for call, place in shown_errors(tree)]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FormattedValue)
            and node.conversion == ord("r")
            and is_error(node.value, caught)
        ):
            found.append((node.lineno, ast.unparse(node.value)))
    return found
