"""verl's FSDP1 offload without its assertions."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any


def without_assertions(function: Any) -> Any:
    """The same function, compiled from its source without `assert` statements, in the same module.

    Raises:
        OSError: if its source cannot be read.
    """
    inner = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(inner)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    code = compile(tree, inspect.getfile(inner), "exec", optimize=1, dont_inherit=True)
    namespace: dict[str, Any] = {}
    exec(code, inner.__globals__, namespace)  # the decorators run again, as they did upstream
    return namespace[inner.__name__]
