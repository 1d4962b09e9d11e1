"""Fingerprints of upstream code: has a target changed since somebody read it?

Two are kept for each target of each supported release. The *signature* is cheap and checked every time a patch is
applied; it misses four changes of five. The *body* (a hash of the syntax tree without docstrings, equal on Python 3.10
to 3.13) is checked by `xpu-shim verify`, and at run time for patches that replace a whole body.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xpu_shim.core.patch import Target

#: Syntax tree fields that differ between Python versions or carry no meaning.
_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_params", "type_ignores"})

_LOCK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fingerprints.json")

#: "verl==0.9.1" to "module:qualname" to {"signature", "body"}.
Lock = dict[str, dict[str, dict[str, str]]]


def load_lock() -> Lock:
    """The reviewed lock file; empty if it is missing (a source tree before its first release)."""
    try:
        with open(_LOCK, encoding="utf-8") as file:
            return json.load(file)["releases"]
    except FileNotFoundError:
        return {}


def save_lock(releases: Lock) -> None:
    """Write the lock file, sorted, so that a review shows what changed and nothing else."""
    with open(_LOCK, "w", encoding="utf-8") as file:
        json.dump({"releases": releases}, file, indent=1, sort_keys=True)
        file.write("\n")


def dump(node: Any) -> str:
    """A syntax tree as text: no positions, no docstrings, no empty fields, so that every Python gives the same."""
    if isinstance(node, ast.AST):
        parts = []
        for name, value in ast.iter_fields(node):
            if name in _IGNORED or value is None or value == []:
                continue
            if name == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                value = value[1:] if _is_docstring(value[0]) else value
            parts.append(f"{name}={dump(value)}")
        return f"{type(node).__name__}({','.join(parts)})"
    if isinstance(node, list):
        return f"[{','.join(map(dump, node))}]"
    return repr(node)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def body_of(node: ast.AST) -> str:
    """The body fingerprint of a definition or assignment."""
    return hashlib.sha256(dump(node).encode()).hexdigest()[:16]


def signature_of_node(node: ast.AST) -> str:
    """The signature fingerprint of a definition: names, kinds and which have defaults. Classes and values: empty."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return ""
    arguments = node.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    return _signature(
        positional,
        len(arguments.posonlyargs),
        len(arguments.defaults),
        arguments.vararg.arg if arguments.vararg else "",
        [
            (argument.arg, default is not None)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ],
        arguments.kwarg.arg if arguments.kwarg else "",
    )


def signature_of(value: Any) -> str:
    """The signature fingerprint of a function object; empty for anything that has no Python code."""
    function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    function = inspect.unwrap(function) if callable(function) else function
    if not isinstance(function, types.FunctionType):
        return ""
    code = function.__code__
    names = code.co_varnames
    count = code.co_argcount
    keyword = names[count : count + code.co_kwonlyargcount]
    rest = count + code.co_kwonlyargcount
    star = names[rest] if code.co_flags & inspect.CO_VARARGS else ""
    rest += bool(star)
    double = names[rest] if code.co_flags & inspect.CO_VARKEYWORDS else ""
    defaults = function.__kwdefaults__ or {}
    return _signature(
        list(names[:count]),
        code.co_posonlyargcount,
        len(function.__defaults__ or ()),
        star,
        [(name, name in defaults) for name in keyword],
        double,
    )


def _signature(
    positional: list[str], only: int, defaults: int, star: str, keyword: list[tuple[str, bool]], double: str
) -> str:
    required = len(positional) - defaults
    parts = [name if index < required else f"{name}=" for index, name in enumerate(positional)]
    if only:
        parts.insert(only, "/")
    if star or keyword:
        parts.append(f"*{star}")
    parts.extend(f"{name}=" if default else name for name, default in keyword)
    if double:
        parts.append(f"**{double}")
    return ", ".join(parts)


def find(tree: ast.Module, qualname: str) -> ast.AST | None:
    """The node that defines `qualname` in a module: the last one, looking into `if` and `try` blocks too."""
    scope: ast.AST = tree
    for part in qualname.split("."):
        found: ast.AST | None = None
        for node in _statements(scope):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == part
            ) or part in _assigned(node):
                found = node
        if found is None:
            return None
        scope = found
    return scope


def _statements(scope: ast.AST) -> list[ast.stmt]:
    result = []
    for node in getattr(scope, "body", []):
        result.append(node)
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            result.extend(_statements(node))
            for name in ("orelse", "finalbody"):
                result.extend(_statements(ast.Module(body=getattr(node, name, []), type_ignores=[])))
            for handler in getattr(node, "handlers", []):
                result.extend(_statements(handler))
    return result


def _assigned(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def fingerprint(source: str, qualname: str) -> dict[str, str] | None:
    """Both fingerprints of one target in a module's source text, or None if the module does not define it."""
    node = find(ast.parse(source), qualname)
    return None if node is None else {"signature": signature_of_node(node), "body": body_of(node)}


def of_object(value: Any) -> dict[str, str] | None:
    """Both fingerprints of a function object read from its source file, or None where there is no source."""
    function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    function = inspect.unwrap(function)
    try:
        path = inspect.getsourcefile(function)
        if path is None:
            return None
        with open(path, encoding="utf-8") as file:
            return fingerprint(file.read(), function.__qualname__)
    except (OSError, TypeError, SyntaxError):
        return None


def check(target: Target, value: Any, lock: Lock, body: bool) -> str | None:
    """Why a target differs from every release somebody read, or None.

    Args:
        target: the declaration.
        value: the object found there.
        lock: the lock file.
        body: whether the body counts too, not only the signature.
    """
    root = target.module.partition(".")[0]
    known = {
        release: prints[str(target)]
        for release, prints in lock.items()
        if release.partition("==")[0] == root and prints.get(str(target), {}).get("signature")
    }
    seen = signature_of(value)
    if not known or not seen:
        return None
    signatures = {prints["signature"] for prints in known.values()}
    if seen not in signatures:
        return f"{target}({seen}) has another signature than in {', '.join(sorted(known))}"
    if body:
        prints = of_object(value)
        if prints is not None and prints["body"] not in {item["body"] for item in known.values()}:
            return f"{target} has another body than in {', '.join(sorted(known))}"
    return None
