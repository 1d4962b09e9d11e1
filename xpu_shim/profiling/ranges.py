"""Ranges that stay balanced: each one that was begun is ended once, on its own thread, whatever the caller does.

ITT has one stack of ranges a thread: the end always ends the innermost. verl's markers name the range they end, and in
asynchronous code, or when one is handed to another thread, that is not always the innermost one. So:

- ended out of order: the ranges above it are ended, and begun again after it (VTune shows those in two pieces);
- ended by another thread: its own thread ends it, at its next marker or when the thread ends.
"""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Range:
    """One range: its name, the stack and the identity of the thread that began it, and whether somebody ended it."""

    __slots__ = ("ended", "name", "stack", "thread")

    def __init__(self, name: str, stack: list[Range], thread: int) -> None:
        self.name = name
        self.stack = stack
        self.thread = thread
        self.ended = False


class Ranges:
    """Begins and ends ranges on the calling thread.

    Args:
        push: opens a range of this name on the calling thread.
        pop: ends the innermost range of the calling thread.
    """

    def __init__(self, push: Callable[[str], object], pop: Callable[[], object]) -> None:
        self._push, self._pop = push, pop
        self._local = threading.local()

    def begin(self, name: str) -> Range:
        """Begin a range; returns what `end` needs."""
        try:
            stack = self._local.stack
        except AttributeError:
            stack = self._first_on_this_thread()
        if stack and stack[-1].ended:
            self._settle(stack)
        name = name if type(name) is str else str(name)
        self._push(name)
        opened = Range(name, stack, get_ident())
        stack.append(opened)
        return opened

    def end(self, opened: Range) -> None:
        """End a range, in any order and on any thread; a second time does nothing."""
        if opened.ended:
            return
        opened.ended = True
        stack = opened.stack
        if opened.thread != get_ident():
            return
        if stack[-1] is opened:
            stack.pop()
            self._pop()
        else:
            self._end_below(stack, opened)
        if stack and stack[-1].ended:
            self._settle(stack)

    def open_here(self) -> list[str]:
        """Names of the ranges open on the calling thread, outermost first."""
        return [opened.name for opened in getattr(self._local, "stack", ())]

    def _first_on_this_thread(self) -> list[Range]:
        stack: list[Range] = []
        self._local.stack = stack
        self._local.owner = _Owner(stack, self._pop)
        return stack

    def _end_below(self, stack: list[Range], opened: Range) -> None:
        position = stack.index(opened)
        above = stack[position + 1 :]
        for _ in range(len(above) + 1):
            self._pop()
        del stack[position:]
        for other in above:
            if not other.ended:
                self._push(other.name)
                stack.append(other)

    def _settle(self, stack: list[Range]) -> None:
        """End what other threads have ended meanwhile."""
        while stack and stack[-1].ended:
            stack.pop()
            self._pop()


class _Owner:
    """Lives as long as its thread and dies on it: then it ends what is still open there."""

    __slots__ = ("pop", "stack")

    def __init__(self, stack: list[Range], pop: Callable[[], object]) -> None:
        self.stack, self.pop = stack, pop

    def __del__(self) -> None:
        while self.stack:
            self.stack.pop().ended = True
            self.pop()
