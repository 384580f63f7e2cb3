"""Primitives whose calls are noted: what an algorithm asks of them is part of their contract."""

from typing import NamedTuple


class Call(NamedTuple):
    """A call of a primitive: the shapes of its arguments, () for what has none, and whether it gave None."""

    name: str
    shapes: tuple
    gave_none: bool


class Watched:
    """An `Ops` that notes the calls of its primitives, in the order in which they return.

    It keeps no array, so that memory is used again as it is without it.
    """

    def __init__(self, ops):
        self.ops, self.calls = ops, []

    def __getattr__(self, name):
        found = getattr(self.ops, name)
        if name in ("xp", "vendor") or not callable(found):
            return found

        def call(*args, **options):
            result = found(*args, **options)
            shapes = tuple(getattr(x, "shape", ()) for x in args)
            self.calls.append(Call(name, shapes, result is None))
            return result

        return call

    def of(self, name):
        """Return the calls of a primitive."""
        return [call for call in self.calls if call.name == name]
