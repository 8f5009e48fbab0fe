"""Decorators of functions that engines call: `interactive`, `depend` and `require`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from broadleaf.errors import UnmetDependency
from broadleaf.serialize.callables import check_callable
from broadleaf.serialize.namespace import current_namespace

# Marking functions as if they were typed at the engine's prompt.


F = TypeVar("F", bound=Callable[..., Any])


def interactive(function: F) -> F:
    """Decorator: the function's globals are those of `__main__` here, and the engine's namespace there.

    Functions defined in a session or script behave like that without it.

    Args:
        function: A function of a module.

    Returns:
        A copy of the function; another callable itself.
    """
    if type(function) is FunctionType:
        made = FunctionType(
            function.__code__,
            sys.modules["__main__"].__dict__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(function.__dict__)
        made.__annotations__ = function.__annotations__
        made.__doc__ = function.__doc__
        made.__qualname__ = function.__qualname__
        made.__module__ = "__main__"
        return made  # type: ignore[return-value]
    function.__module__ = "__main__"
    return function


# Conditions an engine must meet to run a function: `@depend` and `@require`.


Function = Callable[..., Any]


class dependent:
    """A function with a condition, which must not be False on the engine that runs it; `depend` makes it.

    Args:
        function: The function.
        condition: The function to call first.
        *args: Positional arguments of the condition.
        **kwargs: Keyword arguments of the condition.
    """

    def __init__(self, function: Function, condition: Function, /, *args: Any, **kwargs: Any) -> None:
        self.f = function
        self.df = condition
        self.dargs = args
        self.dkwargs = kwargs
        self.__name__: str = getattr(function, "__name__", "f")

    def check_dependency(self) -> None:
        """Checks the condition here, and that of the function within, if it has one.

        Raises:
            UnmetDependency: A condition does not hold.
        """
        if self.df(*self.dargs, **self.dkwargs) is False:
            raise UnmetDependency(f"@depend: {getattr(self.df, '__name__', 'the condition')} returned False")
        within = getattr(self.f, "check_dependency", None)
        if within is not None:
            within()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **kwargs)


class depend:
    """Decorator: run the function only on engines where a condition does not return False.

    A load-balanced task whose condition does not hold on one engine is tried on another. If it holds on none, the task
    is refused with `ImpossibleDependency`.

    Args:
        condition: The function to call on the engine first.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.

    Raises:
        TypeError: The condition, or the function, cannot be called.

    Example:
        >>> @ipp.depend(lambda n: engine_id >= n, 2)
        ... def where():
        ...     return engine_id
        >>> rc.load_balanced_view().apply_sync(where) in (2, 3)
        True
    """

    def __init__(self, condition: Function, /, *args: Any, **kwargs: Any) -> None:
        check_callable(condition)
        self.f = condition
        self.args = args
        self.kwargs = kwargs

    def __call__(self, function: Function) -> dependent:
        check_callable(function)
        return dependent(function, self.f, *self.args, **self.kwargs)


def require(*objects: Any, **mapping: Any) -> depend:
    """Decorator: import modules, and set objects, in the engine's namespace before the function is called.

    If a module cannot be imported on one engine, a load-balanced task goes to another.

    Args:
        *objects: Modules, by name or as such; functions and classes, which go by their name.
        **mapping: Anything else, by the name that it gets.

    Returns:
        A decorator that adds this condition to a function.

    Raises:
        TypeError: An object has no name and was not given by keyword.

    Example:
        >>> @ipp.require("math", factor=10)
        ... def scaled(x):
        ...     return factor * math.sqrt(x)
        >>> rc[0].apply_sync(scaled, 4)
        20.0
    """
    names: list[str] = []
    for obj in objects:
        if isinstance(obj, ModuleType):
            names.append(obj.__name__)
        elif isinstance(obj, str):
            names.append(obj)
        elif hasattr(obj, "__name__"):
            mapping[obj.__name__] = obj
        else:
            raise TypeError(f"Objects other than modules and functions must be passed by kwarg, but got: {type(obj)}")
    return depend(provide, tuple(names), mapping)


def provide(modules: tuple[str, ...], objects: dict[str, Any]) -> bool:
    """Imports `modules` and sets `objects` in the namespace. Raises `UnmetDependency` for a missing module."""
    import __main__

    namespace = current_namespace()
    return provide_in(__main__.__dict__ if namespace is None else namespace, modules, objects)


def provide_in(namespace: dict[str, Any], modules: tuple[str, ...], objects: dict[str, Any]) -> bool:
    """Like `provide`, for a namespace of the caller."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            from broadleaf.serialize.modules import explain_module

            explain_module(error)
            raise UnmetDependency(f"@require({name!r}): the module cannot be imported: {error}") from error
        top = name.partition(".")[0]
        namespace[top] = importlib.import_module(top)
    namespace.update(objects)
    return True
