"""Random functions, as a script defines them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
from description import describe_elsewhere
from values import Values, error_of

Function = Callable[..., Any]

#: What a function makes of its argument.
_BODIES = [
    "x",
    "x",
    "x",
    "twice(x)",
    "plus(x)",
    "changed(x)",
    "viewed(x)",
    "copied(x)",
    "describe(x)",
    "type(x)",
    "(x, {'x': x})",
]

#: How it is defined. `BODY` is one of the above, `captured` a random value.
_FORMS = [
    "def f(x): return BODY",
    "def f(x: int, /) -> list:\n    'Documented.'\n    return BODY",
    "f = lambda x: BODY",
    "def f(*args, **kwargs):\n    x, = args\n    return BODY, kwargs",
    "def make(c):\n    def f(x): return [BODY, c]\n    return f\nf = make(captured)",
    "def make(c):\n    n = 0\n    def f(x):\n        n2 = n + 1\n        return [BODY, n2, (lambda: c)()]\n    return f\nf = make(captured)",
    "def f(x, d=captured, *, k=captured): return [BODY, d, k]",
    "f = lambda x, d=captured: (BODY, d)",
    "def f(x): return [BODY, captured]",
    "def helper(x): return BODY\ndef f(x): return helper(x)",
    "def helper(x): return [BODY, captured]\ndef f(x): return [helper(x), captured]",
    "def f(x, n=3): return BODY if n == 0 else f(x, n - 1)",
    "def f(x, n=3): return BODY if n == 0 else g(x, n - 1)\ndef g(x, n): return f(x, n)",
    "f = functools.partial(lambda c, x: [BODY, c], captured)",
    "f = functools.partial(lambda x, *, c: [BODY, c], c=captured)",
    "f = functools.partial(functools.partial(lambda a, b, x: [BODY, a, b], captured), 2)",
    "f = Plain(a=captured).method",
    "f = Plain(a=captured)",
    "f = Plain.of_class",
    "f = Plain.static",
    "f = Data",
    "f = twice",
    "f = describe",
    "@functools.lru_cache\ndef known(n): return n + 1\ndef f(x): return [BODY, known(2), known(2)]",
    "@functools.lru_cache(maxsize=None)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\ndef f(x): return [BODY, fib(30)]",
    "@functools.singledispatch\ndef f(x): return ['any', BODY]\n@f.register\ndef _(x: int): return ['int', BODY]\n"
    "@f.register(list)\ndef _(x): return ['list', BODY]",
    "@functools.singledispatch\ndef g(x): return 'any'\n@g.register\ndef _(x: dict): return 'dict'\ndef f(x): return [g(x), BODY]",
    "async def f(x): return BODY",
    "async def later(x): return BODY\nasync def f(x):\n    import asyncio\n    await asyncio.sleep(0)\n    return [await later(x), captured]",
    "@counted\ndef f(x): return BODY",
    "def f(x):\n    class Local:\n        def __init__(self, x): self.x = x\n    return Local(BODY)",
    "class Mine:\n    __slots__ = ('x',)\n    def __init__(self, x): self.x = x\ndef f(x): return Mine(BODY)",
    "class Base:\n    def go(self, x): return BODY\nclass Derived(Base):\n    def go(self, x): return [super().go(x)]\nf = Derived().go",
    "class Base:\n    def go(self, x): return BODY\nclass Derived(Base):\n    def go(self, x): return [super().go(x)]\n"
    "def f(x): return Derived().go(x)",
    "class Kind:\n    def base(self, c, x): return [c, BODY]\n    go = functools.partialmethod(base, 'part')\n"
    "    @functools.cached_property\n    def once(self): return [1]\n    @property\n    def of(self): return 2\n"
    "def f(x):\n    kind = Kind()\n    return [kind.go(x), kind.once is kind.once, kind.of]",
    "def gen(x):\n    yield x\n    yield from [1, 2]\ndef f(x): return [[BODY for x in gen(x)], {i: captured for i in range(2)}]",
    "def f(x): return [BODY, f.tag]\nf.tag = captured",
    "def f(x):\n    def inner(n): return BODY if n == 0 else inner(n - 1)\n    return inner(3)",
    "def f(x): return [lambda y: (x, y), captured]",
    "def make():\n    def f(x): return [BODY, later]\n    later = captured\n    return f\nf = make()",
    "import math, os.path\ndef f(x): return [BODY, math.pi, os.path.join('a', 'b'), np.arange(3)]",
    "table = {'f': lambda x: BODY, 'c': captured}\ndef f(x): return [table['f'](x), table['c']]",
    "def f(x):\n    global made_by_f\n    made_by_f = [BODY]\n    return made_by_f",
    "def f(x):\n    try:\n        return BODY\n    finally:\n        del x",
    "def f(x):\n    match x:\n        case [a, *rest]: return a, rest\n        case {'a': a}: return a\n        case _: return BODY",
    "f = functools.reduce and (lambda x: [BODY, __name__])",
    "__private = captured\ndef f(x): return [BODY, __private]",
    "__version__ = '1.0'\ndef f(x): return [BODY, __version__]",
    "import contextvars\nvariable = contextvars.ContextVar('v', default=captured)\ndef f(x): return [BODY, variable.get()]",
    "class Meta(type):\n    def __call__(cls, *args): return ['meta', type.__call__(cls, *args)]\n"
    "class Made(metaclass=Meta):\n    def __init__(self, x): self.x = x\ndef f(x): return Made(BODY)",
    "class Outer:\n    class Inner:\n        def __init__(self, x): self.x = x\ndef f(x): return Outer.Inner(BODY)",
    "import abc\nclass Abstract(abc.ABC):\n    @abc.abstractmethod\n    def go(self, x): ...\nclass Concrete(Abstract):\n"
    "    def go(self, x): return BODY\nf = Concrete().go",
    "import dataclasses\n@dataclasses.dataclass(slots=True, frozen=True)\nclass Record:\n    x: object\n    y: list = dataclasses.field("
    "default_factory=list)\ndef f(x): return Record(BODY)",
    "import enum\nclass Level(enum.Enum):\n    LOW = 1\n    HIGH = 2\ndef f(x): return [Level.HIGH, BODY, Level(1).name]",
    "import collections\nPoint = collections.namedtuple('Point', 'x y')\ndef f(x): return Point(BODY, 2)",
]  # fmt: skip
_RAISING_FORMS = [
    "def f(x): raise error",
    "def f(x): raise OwnError(x)",
    "def f(x): raise ValueError(x) from KeyError('cause')",
    "def f(x):\n    try:\n        {}['nosuch']\n    except KeyError:\n        raise OtherArguments(1, x)",
    "def f(x):\n    error = OwnError('noted')\n    error.add_note('first note')\n    error.add_note('second')\n    raise error",
    "def f(x): return x.nosuch",
    "def f(x): return nosuch",
    "def f(x): return undefined_here if x is None else [][1]",
    "def f(x): raise OwnGroup('several', [OwnError(x), ValueError(1)])",
    "class Mine(Exception):\n    def __init__(self, a, *, b):\n        super().__init__(a)\n        self.b = b\ndef f(x): raise Mine(x, b=2)",
    "class Mine(KeyError):\n    __slots__ = ('a',)\ndef f(x):\n    error = Mine('m')\n    error.a = x\n    raise error",
    "def f(x):\n    class Local(Exception): pass\n    raise Local(x)",
    "async def f(x): raise KeywordError('text', code=x)",
    "class Broken:\n    def __init__(self, x): raise StateError(x)\nf = Broken",
    "def f(x): raise OwnError",
    "def f(x): assert x is f, 'not the same'",
    "def f(x): raise FileError(2, 'none', 'file', x) from OwnError('why')",
]

#: These find what the last call left, if that was in the same process. `OWN` is a name that no other function uses.
_STATEFUL_FORMS = [
    "def f(x, seen=[]):\n    seen.append(x)\n    return [BODY, [*seen]]",
    "def f(x, *, seen={}):\n    seen[len(seen)] = x\n    return [BODY, {**seen}]",
    "def make():\n    n = 0\n    def f(x):\n        nonlocal n\n        n += 1\n        return [BODY, n]\n    return f\nf = make()",
    "def make(seen):\n    def f(x):\n        seen.append(len(seen))\n        return [BODY, [*seen]]\n    return f\nf = make([captured])",
    "def OWN(x):\n    OWN.calls = getattr(OWN, 'calls', 0) + 1\n    return [BODY, OWN.calls]\nf = OWN",
    "OWN = []\ndef f(x):\n    OWN.append(len(OWN))\n    return [BODY, [*OWN]]",
    "OWN = 0\ndef f(x):\n    global OWN\n    OWN += 1\n    return [BODY, OWN]",
    "class OWN:\n    calls = 0\ndef f(x):\n    OWN.calls += 1\n    return [BODY, OWN.calls]",
    "OWN = []\n@functools.lru_cache\ndef cached(key):\n    OWN.append(key)\n    return len(OWN)\n"
    "def f(x): return [BODY, cached('a'), cached('a'), [*OWN]]",
    "@functools.lru_cache\ndef cached(): return []\ndef f(x):\n    cached().append(x)\n    return [BODY, [*cached()]]",
    "def helper(x, n=[0]):\n    n[0] += 1\n    return n[0]\ndef f(x): return [BODY, helper(x), helper(x)]",
    "f = lambda x, n=[0]: [BODY, n.append(1), len(n)]",
]  # fmt: skip


def random_function(values: Values, own: str) -> tuple[Function, str, bool]:
    """A function of one argument, its source, and whether it keeps state between calls. `own` is a name for it."""
    rng = values.rng
    chance = rng.random()
    keeps_state = chance < 0.05
    form = rng.choice(_STATEFUL_FORMS if keeps_state else _RAISING_FORMS if chance < 0.2 else _FORMS)
    source = form.replace("BODY", rng.choice(_BODIES)).replace("OWN", own)
    kinds = values.kinds
    names: dict[str, Any] = {
        name: value for name, value in vars(kinds).items() if not name.startswith("__") and name != "annotations"
    }
    names.update(__name__="__main__", describe=describe_elsewhere, functools=functools, np=np)
    names["captured"] = _sendable(values, lambda: values.any(2))
    names["error"] = _sendable(values, lambda: error_of(values, kinds))
    exec(compile(source, "<script>", "exec"), names)
    return names["f"], source, keeps_state


def _sendable(values: Values, make: Callable[[], Any]) -> Any:
    """A value that cloudpickle can copy."""
    while True:
        value = make()
        try:
            cloudpickle.loads(cloudpickle.dumps(value))
        except Exception:
            continue
        return value
