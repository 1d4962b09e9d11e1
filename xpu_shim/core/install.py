"""`Install`: what a patch's `apply` works with. Every change goes through it, so every change can be taken back."""

from __future__ import annotations

import functools
import gc
import sys
import types
from typing import TYPE_CHECKING, Any

from xpu_shim.core.patch import NotForMe, Retire

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_shim.core.patch import Patch

#: In a replacement's own `__dict__`: the id of the patch that made it. wrapt proxies forward attribute reads to what
#: they wrap and `__wrapped__` is shared by everybody, so neither could tell our layer from another's.
MARKER = "_xpu_shim_patch"

_MISSING: Any = object()


class RemovalError(RuntimeError):
    """A patch cannot be taken back because something else was put on top of it; the message says where and what."""


class _Attribute:
    """One attribute that was changed: where, what was there, what is there now, and who else held the old object."""

    __slots__ = ("created", "holders", "installed", "name", "original", "parent")

    def __init__(self, parent: Any, name: str, original: Any, installed: Any, created: bool) -> None:
        self.parent, self.name, self.original, self.installed, self.created = parent, name, original, installed, created
        self.holders: list[tuple[dict[str, Any], str]] = []

    def current(self) -> Any:
        # Not getattr: a class would bind a method, and an inherited attribute is not this one.
        return vars(self.parent).get(self.name, _MISSING)

    def restore(self) -> None:
        if self.created:
            delattr(self.parent, self.name)
        else:
            setattr(self.parent, self.name, self.original)
        for namespace, key in self.holders:
            if namespace.get(key) is self.installed:
                namespace[key] = self.original


class Install:
    """The changes of one patch on one module.

    Attributes:
        patch: the declaration.
        module: the target module, just executed.
        late: whether the module had been imported before the hook; then by-value holders are re-bound.
        kept: descriptions of holders of an original that could not be re-bound; the patch's state becomes `late`.
    """

    def __init__(self, patch: Patch, module: types.ModuleType, late: bool = False) -> None:
        self.patch, self.module, self.late = patch, module, late
        self.kept: list[str] = []
        self._attributes: list[_Attribute] = []
        self._callbacks: list[Callable[[], object]] = []

    def replace(self, qualname: str, make: Callable[[Any], Any]) -> None:
        """Replace `qualname` by `make(original)`.

        A static or class method is unwrapped before `make` and wrapped again after it. A function gets the original's
        name, module, signature and attributes (`functools.wraps`), so that it pickles by reference and verl's
        registered methods stay registered. Doing it twice gives one layer.

        Raises:
            wrapt.PathResolutionError: if there is no such attribute.
        """
        parent, name, original = resolve(self.module, qualname)
        if marker(original) == self.patch.id:
            return
        descriptor = type(original) if isinstance(original, (staticmethod, classmethod)) else None
        function = original.__func__ if descriptor else original
        replacement = make(function)
        if isinstance(replacement, types.FunctionType):
            functools.update_wrapper(replacement, function)
            replacement.__dict__[MARKER] = self.patch.id
            if isinstance(parent, types.ModuleType) and function.__module__ != parent.__name__ and "." not in qualname:
                # A name the module only imported: where it comes from is not patched, so it is pickled by this place.
                replacement.__module__, replacement.__qualname__ = parent.__name__, name
        elif isinstance(replacement, type):
            setattr(replacement, MARKER, self.patch.id)
        self._put(parent, name, original, descriptor(replacement) if descriptor else replacement)

    def set(self, qualname: str, value: Any) -> None:
        """Give an existing attribute another value.

        Raises:
            wrapt.PathResolutionError: if there is no such attribute.
        """
        parent, name, original = resolve(self.module, qualname)
        if original is not value:
            self._put(parent, name, original, value)

    def add(self, qualname: str, value: Any) -> None:
        """Add an attribute that does not exist; removed again with the patch. An existing one is left alone."""
        path, _, name = qualname.rpartition(".")
        parent = resolve(self.module, path)[2] if path else self.module
        if name in vars(parent):
            return
        if isinstance(value, types.FunctionType):
            value.__dict__.setdefault(MARKER, self.patch.id)
        self._put(parent, name, _MISSING, value)

    def on_remove(self, undo: Callable[[], object]) -> None:
        """Register what takes back a change made by other means (a registry, a dispatcher library)."""
        self._callbacks.append(undo)

    def skip(self, reason: str) -> None:
        """Say that the patch has no work here; ends `apply`."""
        raise NotForMe(reason)

    def retire(self, reason: str) -> None:
        """Say that upstream is right already; ends `apply`."""
        raise Retire(reason)

    @property
    def empty(self) -> bool:
        """Whether nothing was changed."""
        return not self._attributes and not self._callbacks

    def intact(self, module: types.ModuleType) -> bool:
        """Whether all of it is still in place on this module object (it is not after a reload)."""
        return self.module is module and all(
            # A foreign wrapper on top still calls ours, so the module counts as patched.
            change.current() is change.installed or _wraps(change.current(), change.installed)
            for change in self._attributes
        )

    def remove(self) -> None:
        """Take everything back; the attributes are then the identical objects they were before.

        Raises:
            RemovalError: if something else was put on top; nothing is changed then.
        """
        for change in self._attributes:
            if change.current() is not change.installed:
                raise RemovalError(
                    f"{self.patch.id}: {getattr(change.parent, '__name__', change.parent)}.{change.name} is now "
                    f"{change.current()!r}, put there after the patch; remove that first"
                )
        self.abandon()

    def abandon(self) -> None:
        """Take back what is still ours and forget the rest (a module that was reloaded has fresh attributes)."""
        for change in reversed(self._attributes):
            if change.current() is change.installed:
                change.restore()
        self._attributes.clear()
        while self._callbacks:
            self._callbacks.pop()()

    def _put(self, parent: Any, name: str, original: Any, installed: Any) -> None:
        change = _Attribute(parent, name, original, installed, created=name not in vars(parent))
        setattr(parent, name, installed)
        self._attributes.append(change)
        # A constant is shared by all who mean the same value (False, a string): only functions and classes are one thing
        # under many names.
        copied = isinstance(original, (types.FunctionType, types.BuiltinFunctionType, type))
        if self.late and isinstance(parent, types.ModuleType) and copied:
            change.holders = rebind(original, installed)
            self.kept.extend(other_holders(original, installed))


def resolve(module: types.ModuleType, qualname: str) -> tuple[Any, str, Any]:
    """The object that holds the last part of `qualname`, that part, and its raw value (descriptors stay descriptors).

    Raises:
        wrapt.PathResolutionError: if a part is missing.
    """
    # Imported here: wrapt pulls in asyncio, which processes without an Intel GPU should not pay for.
    import wrapt

    return wrapt.resolve_path(module, qualname)


def marker(value: Any) -> str | None:
    """The id of the patch that made this object, or None."""
    function = getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod)) else value
    return getattr(function, "__dict__", {}).get(MARKER)


def _wraps(value: Any, wanted: Any) -> bool:
    """Whether `wanted` is found below `value` on the `__wrapped__` chain."""
    for _ in range(64):
        if value is wanted:
            return True
        value = getattr(value, "__wrapped__", None)
        if value is None:
            return False
    return False


def rebind(original: Any, installed: Any) -> list[tuple[dict[str, Any], str]]:
    """Give every module that holds `original` under some name the new object; returns where.

    The shim's own modules are left out: a saved original re-bound to its wrapper would call itself for ever.
    """
    changed = []
    for module_name, module in list(sys.modules.items()):
        if module_name == "xpu_shim" or module_name.startswith("xpu_shim."):
            continue
        namespace = getattr(module, "__dict__", None)
        if type(namespace) is not dict:
            continue
        for key, value in list(namespace.items()):
            if value is original:
                namespace[key] = installed
                changed.append((namespace, key))
    return changed


def other_holders(original: Any, installed: Any) -> list[str]:
    """Containers that still hold `original` after modules were re-bound: class bodies, default arguments, registries.

    What `installed` itself keeps (closure cells, `__wrapped__`) is not counted.
    """
    found = []
    for holder in gc.get_referrers(original):
        if isinstance(holder, dict) and MARKER not in holder:
            owner = holder.get("__qualname__") or holder.get("__name__") or ", ".join(map(str, list(holder)[:3]))
            found.append(f"a mapping ({owner})")
        elif isinstance(holder, (tuple, list, set)):
            found.append(f"a {type(holder).__name__} of {len(holder)}")
    return found
