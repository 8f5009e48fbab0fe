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
    "kind_of(x)",
    "(x, {'x': x})",
]

#: How it is defined. `BODY` is one of the above, `captured` a random value.
_FORMS = """
def f(x): return BODY

def f(x: int, /) -> list:
    'Documented.'
    return BODY

f = lambda x: BODY

def f(*args, **kwargs):
    x, = args
    return BODY, kwargs

def make(c):
    def f(x): return [BODY, c]
    return f
f = make(captured)

def make(c):
    n = 0
    def f(x):
        n2 = n + 1
        return [BODY, n2, (lambda: c)()]
    return f
f = make(captured)

def f(x, d=captured, *, k=captured): return [BODY, d, k]

f = lambda x, d=captured: (BODY, d)

def f(x): return [BODY, captured]

def helper(x): return BODY
def f(x): return helper(x)

def helper(x): return [BODY, captured]
def f(x): return [helper(x), captured]

def f(x, n=3): return BODY if n == 0 else f(x, n - 1)

def f(x, n=3): return BODY if n == 0 else g(x, n - 1)
def g(x, n): return f(x, n)

f = functools.partial(lambda c, x: [BODY, c], captured)

f = functools.partial(lambda x, *, c: [BODY, c], c=captured)

f = functools.partial(functools.partial(lambda a, b, x: [BODY, a, b], captured), 2)

f = Plain(a=captured).method

f = Plain(a=captured)

f = Plain.of_class

f = Plain.static

f = Data

f = twice

f = describe

@functools.lru_cache
def known(n): return n + 1
def f(x): return [BODY, known(2), known(2)]

@functools.lru_cache(maxsize=None)
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def f(x): return [BODY, fib(30)]

@functools.singledispatch
def f(x): return ['any', BODY]
@f.register
def _(x: int): return ['int', BODY]
@f.register(list)
def _(x): return ['list', BODY]

@functools.singledispatch
def g(x): return 'any'
@g.register
def _(x: dict): return 'dict'
def f(x): return [g(x), BODY]

async def f(x): return BODY

async def later(x): return BODY
async def f(x):
    import asyncio
    await asyncio.sleep(0)
    return [await later(x), captured]

@counted
def f(x): return BODY

def f(x):
    class Local:
        def __init__(self, x): self.x = x
    return Local(BODY)

class Mine:
    __slots__ = ('x',)
    def __init__(self, x): self.x = x
def f(x): return Mine(BODY)

class Base:
    def go(self, x): return BODY
class Derived(Base):
    def go(self, x): return [super().go(x)]
f = Derived().go

class Base:
    def go(self, x): return BODY
class Derived(Base):
    def go(self, x): return [super().go(x)]
def f(x): return Derived().go(x)

class Kind:
    def base(self, c, x): return [c, BODY]
    go = functools.partialmethod(base, 'part')
    @functools.cached_property
    def once(self): return [1]
    @property
    def of(self): return 2
def f(x):
    kind = Kind()
    return [kind.go(x), kind.once is kind.once, kind.of]

def gen(x):
    yield x
    yield from [1, 2]
def f(x): return [[BODY for x in gen(x)], {i: captured for i in range(2)}]

def f(x): return [BODY, f.tag]
f.tag = captured

def f(x):
    def inner(n): return BODY if n == 0 else inner(n - 1)
    return inner(3)

def f(x): return [lambda y: (x, y), captured]

def make():
    def f(x): return [BODY, later]
    later = captured
    return f
f = make()

import math, os.path
def f(x): return [BODY, math.pi, os.path.join('a', 'b'), np.arange(3)]

table = {'f': lambda x: BODY, 'c': captured}
def f(x): return [table['f'](x), table['c']]

def f(x):
    global made_by_f
    made_by_f = [BODY]
    return made_by_f

def f(x):
    try:
        return BODY
    finally:
        del x

def f(x):
    match x:
        case [a, *rest]: return a, rest
        case {'a': a}: return a
        case _: return BODY

f = functools.reduce and (lambda x: [BODY, __name__])

__private = captured
def f(x): return [BODY, __private]

__version__ = '1.0'
def f(x): return [BODY, __version__]

import contextvars
variable = contextvars.ContextVar('v', default=captured)
def f(x): return [BODY, variable.get()]

class Meta(type):
    def __call__(cls, *args): return ['meta', type.__call__(cls, *args)]
class Made(metaclass=Meta):
    def __init__(self, x): self.x = x
def f(x): return Made(BODY)

class Outer:
    class Inner:
        def __init__(self, x): self.x = x
def f(x): return Outer.Inner(BODY)

import abc
class Abstract(abc.ABC):
    @abc.abstractmethod
    def go(self, x): ...
class Concrete(Abstract):
    def go(self, x): return BODY
f = Concrete().go

import dataclasses
@dataclasses.dataclass(slots=True, frozen=True)
class Record:
    x: object
    y: list = dataclasses.field(default_factory=list)
def f(x): return Record(BODY)

import enum
class Level(enum.Enum):
    LOW = 1
    HIGH = 2
def f(x): return [Level.HIGH, BODY, Level(1).name]

import collections
Point = collections.namedtuple('Point', 'x y')
def f(x): return Point(BODY, 2)
""".strip().split("\n\n")
_RAISING_FORMS = """
def f(x): raise error

def f(x): raise OwnError(x)

def f(x): raise ValueError(x) from KeyError('cause')

def f(x):
    try:
        {}['nosuch']
    except KeyError:
        raise OtherArguments(1, x)

def f(x):
    error = OwnError('noted')
    error.add_note('first note')
    error.add_note('second')
    raise error

def f(x): return x.nosuch

def f(x): return nosuch

def f(x): return undefined_here if x is None else [][1]

def f(x): raise OwnGroup('several', [OwnError(x), ValueError(1)])

class Mine(Exception):
    def __init__(self, a, *, b):
        super().__init__(a)
        self.b = b
def f(x): raise Mine(x, b=2)

class Mine(KeyError):
    __slots__ = ('a',)
def f(x):
    error = Mine('m')
    error.a = x
    raise error

def f(x):
    class Local(Exception): pass
    raise Local(x)

async def f(x): raise KeywordError('text', code=x)

class Broken:
    def __init__(self, x): raise StateError(x)
f = Broken

def f(x): raise OwnError

def f(x): assert x is f, 'not the same'

def f(x): raise FileError(2, 'none', 'file', x) from OwnError('why')
""".strip().split("\n\n")

#: These find what the last call left, if that was in the same process. `OWN` is a name that no other function uses.
_STATEFUL_FORMS = """
def f(x, seen=[]):
    seen.append(x)
    return [BODY, [*seen]]

def f(x, *, seen={}):
    seen[len(seen)] = x
    return [BODY, {**seen}]

def make():
    n = 0
    def f(x):
        nonlocal n
        n += 1
        return [BODY, n]
    return f
f = make()

def make(seen):
    def f(x):
        seen.append(len(seen))
        return [BODY, [*seen]]
    return f
f = make([0])

def OWN(x):
    OWN.calls = getattr(OWN, 'calls', 0) + 1
    return [BODY, OWN.calls]
f = OWN

OWN = []
def f(x):
    OWN.append(len(OWN))
    return [BODY, [*OWN]]

OWN = 0
def f(x):
    global OWN
    OWN += 1
    return [BODY, OWN]

class OWN:
    calls = 0
def f(x):
    OWN.calls += 1
    return [BODY, OWN.calls]

OWN = []
@functools.lru_cache
def cached(key):
    OWN.append(key)
    return len(OWN)
def f(x): return [BODY, cached('a'), cached('a'), [*OWN]]

@functools.lru_cache
def cached(): return []
def f(x):
    cached().append(x)
    return [BODY, [*cached()]]

def helper(x, n=[0]):
    n[0] += 1
    return n[0]
def f(x): return [BODY, helper(x), helper(x)]

f = lambda x, n=[0]: [BODY, n.append(1), len(n)]
""".strip().split("\n\n")


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
