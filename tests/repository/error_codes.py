"""The error codes of the source, with their statuses.

Both are arguments of `ApiError` or its `__init__`, or of a function that returns one, such as
`invalid_request(message, code="no_body")`.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable


def read_error_codes(sources: Iterable[str]) -> dict[str, set[int]]:
    """The statuses of each code; none for a code of a `Failure`, which ends a stream or becomes another error."""
    collector = _Collector()
    for source in sources:
        if "code=" in source:  # half of the files have none
            collector.visit(ast.parse(source))
    found = defaultdict[str, set[int]](set)
    for call in collector.calls:
        for code in collector.values(collector.argument(call, "code")):
            if isinstance(code, str):
                found[code] |= collector.statuses(call)
    return found


class _Collector(ast.NodeVisitor):
    def __init__(self) -> None:
        self.calls: list[ast.Call] = []
        self._constants: dict[str, object] = {}
        self._functions: dict[str, ast.FunctionDef] = {}  # that return an ApiError

    def visit_Assign(self, node: ast.Assign) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                self._constants[name] = value
            case _:
                self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if isinstance(node.returns, ast.Name) and node.returns.id == "ApiError":
            self._functions[node.name] = node
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.calls.append(node)
        self.generic_visit(node)

    def argument(self, call: ast.Call, name: str) -> ast.expr | None:
        """The argument for a parameter, if the call makes an error."""
        function = _function_name(call)
        if function not in ("ApiError", "Failure", "__init__", *self._functions):  # of a subclass
            return None
        definition = self._functions.get(function)
        parameters = [] if definition is None else [one.arg for one in definition.args.args if one.arg != "self"]
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        return given.get(name) or dict(zip(parameters, call.args, strict=False)).get(name)

    def values(self, expression: ast.expr | None) -> set[object]:
        """The constants in an expression: one, or both of a condition."""
        nodes = [] if expression is None else list(ast.walk(expression))
        names = {self._constants.get(node.id) for node in nodes if isinstance(node, ast.Name)}
        return names | {node.value for node in nodes if isinstance(node, ast.Constant)}

    def statuses(self, call: ast.Call) -> set[int]:
        """The first argument, or else the status that the function itself passes on."""
        found = {value for value in self.values(call.args[0] if call.args else None) if isinstance(value, int)}
        definition = self._functions.get(_function_name(call))
        if found or definition is None:
            return found
        inner = (node for node in ast.walk(definition) if isinstance(node, ast.Call))
        return {status for node in inner if self.argument(node, "code") is not None for status in self.statuses(node)}


def _function_name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
