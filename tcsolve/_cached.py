"""A property that is computed once, without a lock."""

__all__ = ["cached_property"]


class cached_property:  # noqa: N801  the name of functools
    """`functools.cached_property` without its lock.

    Up to Python 3.11, the property of functools has one lock for all objects, and holds it while it computes
    a value.  So threads wait for each other, and a child process that is forked meanwhile waits for ever.

    Examples
    --------
    >>> class Square:
    ...     side = 3
    ...
    ...     @cached_property
    ...     def area(self):
    ...         return self.side**2
    >>> Square().area
    9
    """

    def __init__(self, function):
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        # From now on Python finds the value in the dictionary of the object, and does not call the property.
        value = vars(instance)[self._name] = self._function(instance)
        return value
