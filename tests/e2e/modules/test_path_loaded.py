"""Modules that were loaded from a path, or made in memory, and those registered with cloudpickle: what they define
arrives."""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import broadleaf as ipp
import cloudpickle
import joblib
import pytest
from broadleaf.interop.backends import offer_backends

pytestmark = pytest.mark.timeout(120)

TEXT = """
import abc, enum, threading
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
SCALE = 3
LOCK = threading.Lock()
CALLS = []
@dataclass
class Sample:
    t: float
    def scaled(self):
        return scaled(self.t)
class PluginError(Exception): pass
def scaled(x):
    return x * SCALE
def make(x):
    return Sample(x)
def fail(x):
    raise PluginError(x)
def locked(x):
    with LOCK:
        return x
def n_calls():
    CALLS.append(None)
    return len(CALLS)
class Single:
    def __reduce__(self):
        return "SINGLE"
SINGLE = Single()
class Colour(enum.Enum):
    RED = 1
    def other(self): return scaled(self.value)
class Point(NamedTuple):
    x: int
class Outer:
    class Inner:
        y: ClassVar = 1
    @classmethod
    def made(cls): return cls()
    @property
    def z(self): return 5
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
class Square(Shape):
    def area(self): return 4
def imports_itself():
    return __import__(__name__, fromlist=["*"]).SCALE
"""


def load(name: str, path: Path, packages: list[str] | None = None, *, register: bool = True) -> ModuleType:
    """The module in a file, under any name."""
    spec = spec_from_file_location(name, path, submodule_search_locations=packages)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    if register:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def in_memory(name: str, text: str = TEXT) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(text, module.__dict__)
    return module


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Loads the module of a given kind."""
    path = tmp_path / "weather plugin.py"
    path.write_text(TEXT)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(TEXT)
    (tmp_path / "on_path.py").write_text(TEXT)
    before = dict(sys.modules)
    registered = cloudpickle.list_registry_pickle_by_value()

    def make(kind: str) -> ModuleType:
        if kind == "in memory":
            return in_memory("made_up")
        if kind == "by value":
            sys.path.insert(0, str(tmp_path))
            importlib.invalidate_caches()
            module = importlib.import_module("on_path")
            cloudpickle.register_pickle_by_value(module)
            return module
        if kind == "package":
            return load("plug_package", package / "__init__.py", [str(package)])
        return load(kind, path, register=kind != "not registered")

    yield make
    for name, module in list(sys.modules.items()):
        if "n_calls" in vars(module) and name not in before:
            del sys.modules[name]
    for name in cloudpickle.list_registry_pickle_by_value() - registered:
        cloudpickle.unregister_pickle_by_value(ModuleType(name))
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


KINDS = ["weather_a", "pkg.sub.weather", "my-script.py", "json.weather", "not registered", "in memory", "package"]


def by_apply(view: Any, function: Any, *items: Any) -> list[Any]:
    return [view.apply_sync(function, item) for item in items]


def by_map(view: Any, function: Any, *items: Any) -> list[Any]:
    return list(view.map_sync(function, items))


async def awaited(view: Any, function: Any, items: tuple[Any, ...]) -> list[Any]:
    return [await view.apply_async(function, item) for item in items]


def by_asyncio(view: Any, function: Any, *items: Any) -> list[Any]:
    return asyncio.run(awaited(view, function, items))


def by_executor(view: Any, function: Any, *items: Any) -> list[Any]:
    with view.client.executor() as executor:
        return list(executor.map(function, items))


def by_joblib(view: Any, function: Any, *items: Any) -> list[Any]:
    offer_backends()
    view.client.load_balanced_view().register_joblib_backend()
    with joblib.parallel_config("broadleaf", n_jobs=2):
        return joblib.Parallel()(joblib.delayed(function)(item) for item in items)


WAYS = [by_apply, by_map, by_asyncio, by_executor, by_joblib]


@pytest.fixture(params=["direct", "balanced", "broadcast"])
def view(request: pytest.FixtureRequest, rc: ipp.Client) -> Any:
    """A view with one engine, or whichever is free."""
    views = {
        "direct": lambda: rc[0],
        "balanced": rc.load_balanced_view,
        "broadcast": lambda: rc.broadcast_view([0]),
    }
    return views[request.param]()


def one(value: Any) -> Any:
    """The value of a call, from whichever view."""
    return value[0] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", [*KINDS, "by value"])
def test_functions_classes_and_exceptions_arrive_by_every_view(view, loaded, kind):
    module = loaded(kind)
    assert one(view.apply_sync(module.scaled, 2)) == 6
    assert list(view.map_sync(module.scaled, [1, 2])) == [3, 6]
    assert one(view.apply_sync(functools.partial(module.scaled, 2))) == 6
    assert one(view.apply_sync(lambda x: module.scaled(x), 2)) == 6
    assert one(view.apply_sync(lambda f: f(2), module.scaled)) == 6
    assert one(view.apply_sync(lambda m: m.make(2).scaled(), module)) == 6
    assert one(view.apply_sync(module.Sample(2).scaled)) == 6
    made = one(view.apply_sync(module.make, 2))
    assert type(made) is module.Sample
    assert made == module.Sample(2)
    assert one(view.apply_sync(lambda samples: sum(s.scaled() for s in samples), [module.Sample(1), made])) == 9
    assert one(view.apply_sync(module.Sample, 2)) == made
    with pytest.raises(ipp.RemoteError) as caught:
        fail(view, module)
    assert isinstance(caught.value, module.PluginError)
    assert module.SCALE == 3
    assert module.scaled.__globals__ is vars(module), "what came back has changed nothing here"


def fail(view: Any, module: ModuleType) -> None:
    try:
        view.apply_sync(module.fail, 2)
    except ipp.CompositeError as error:
        raise error.exceptions[0] from None


@pytest.mark.parametrize("kind", KINDS)
def test_classes_of_all_kinds_are_the_same_when_they_come_back(rc, loaded, kind):
    module = loaded(kind)
    values = [
        module.Colour.RED,
        module.Point(2),
        module.Outer(),
        module.Outer.Inner(),
        module.Square(),
        module.PluginError(3),
    ]
    for value in [*values, values]:
        there = rc[0].apply_sync(lambda x: x, value)
        for back, sent in zip(there, values, strict=True) if value is values else [(there, value)]:
            assert type(back) is type(sent)
    assert rc[0].apply_sync(lambda c: c, module.Colour.RED) is module.Colour.RED
    assert rc[0].apply_sync(module.Colour.RED.other) == 3
    assert rc[0].apply_sync(module.Outer.made).z == 5
    assert rc[0].apply_sync(lambda: [module.Point(1), module.Square().area()]) == [module.Point(1), 4]
    assert isinstance(rc[0].apply_sync(module.Square), module.Shape)


def test_what_is_pickled_by_its_name_says_so_and_is_sent_with_its_module(loaded):
    module = loaded("weather_a")
    advised = r"pickled by name.*client\.ship_module\('weather_a'\)"
    with ipp.Cluster(n=1) as client:
        for send in (
            lambda: client[0].apply_sync(type, module.SINGLE),
            lambda: client[0].apply_sync(lambda single=module.SINGLE: single),
            lambda: client[0].push({"x": [1, module.SINGLE]}, block=True),
        ):
            with pytest.raises(ipp.SerializationError, match=advised):
                send()
        client.ship_module(module)
        assert client[0].apply_sync(lambda x: x is __import__("weather_a").SINGLE, module.SINGLE)
        assert client[0].apply_sync(lambda: module.SINGLE is __import__("weather_a").SINGLE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["weather_a", "my-script.py", "in memory", "by value"])
def test_they_arrive_by_every_way_of_calling(rc, loaded, kind, way):
    module = loaded(kind)
    view = rc.load_balanced_view()
    assert way(view, module.scaled, 1, 2) == [3, 6]
    assert way(view, module.make, 1, 2) == [module.Sample(1), module.Sample(2)]
    assert way(view, lambda sample: sample.scaled(), module.Sample(1), module.Sample(2)) == [3, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_pushed_pulled_and_scattered(rc, loaded, kind):
    module = loaded(kind)
    rc[:].push({"sample": module.Sample(2), "scaled": module.scaled}, block=True)
    assert rc[:].apply_sync(ipp.interactive(lambda: scaled(sample.t))) == [6] * 4  # noqa: F821
    assert rc[:].pull("sample", block=True) == [module.Sample(2)] * 4
    rc[:].scatter("part", [module.Sample(i) for i in range(8)], block=True)
    assert rc[:].gather("part", block=True) == [module.Sample(i) for i in range(8)]
    rc.broadcast(module.Sample(5), "sample")
    assert rc[0].pull("sample", block=True).scaled() == 15


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_is_sent_is_imported_by_its_name(rc, loaded, kind):
    module = loaded(kind)
    assert rc[0].apply_sync(module.n_calls) == 1
    assert rc[0].apply_sync(module.n_calls) == 2
    assert rc[0].apply_sync(lambda: module.n_calls()) == 1, "by value, each function has state of its own"
    if kind == "in memory":
        with pytest.raises(ValueError, match=r"has no files to send .*put it into a file"):
            rc.ship_module(module)
        return
    if kind == "json.weather":
        with pytest.raises(ValueError, match="every engine has its own 'json'"):
            rc.ship_module(module)
        return
    with ipp.Cluster(n=1) as own:
        own.ship_module(module)
        name = module.__name__
        assert own[0].apply_sync(lambda: __import__(name, fromlist=["*"]).scaled(2)) == 6
        if kind == "not registered":
            assert own[0].apply_sync(module.scaled, 2) == 6
            return
        assert [own[0].apply_sync(module.n_calls) for _ in range(3)] == [1, 2, 3], "by name, they share the module"
        assert list(own.load_balanced_view().map_sync(module.scaled, [1, 2])) == [3, 6]
        assert own[0].apply_sync(module.make, 2) == module.Sample(2)
        assert own[0].apply_sync(lambda s: type(s) is __import__(name, fromlist=["*"]).Sample, module.Sample(1))
        assert own[0].apply_sync(module.locked, 1) == 1
    assert rc[0].apply_sync(module.scaled, 2) == 6, "another cluster, which was not sent the module, has it by value"


def test_local_modules_are_sent_under_the_names_that_they_have(tmp_path, loaded, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modules = [loaded(kind) for kind in ("weather_a", "pkg.sub.weather", "my-script.py", "package")]
    with ipp.Cluster(n=1, ship_local_modules=True) as rc:
        for module in modules:
            assert [rc[0].apply_sync(module.n_calls) for _ in range(2)] == [1, 2], module.__name__
            assert rc[0].apply_sync(module.imports_itself) == 3
            assert type(rc[0].apply_sync(module.make, 2)) is module.Sample
        made = in_memory("made_up")
        assert rc[0].apply_sync(made.scaled, 2) == 6


def test_what_an_engine_has_loaded_itself_is_the_engines_own(rc, loaded, tmp_path):
    module = loaded("weather_a")

    def load_there(path):
        import sys
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("weather_a", path)
        module = sys.modules["weather_a"] = module_from_spec(spec)
        spec.loader.exec_module(module)

    rc[0].apply_sync(load_there, str(tmp_path / "weather plugin.py"))
    try:
        assert rc[0].apply_sync(lambda s: type(s) is __import__("weather_a").Sample, module.Sample(1))
        assert [rc[0].apply_sync(module.n_calls) for _ in range(2)] == [1, 2]
        assert type(rc[0].apply_sync(lambda: __import__("weather_a").Sample(1))) is module.Sample
    finally:
        rc[0].execute("import sys; del sys.modules['weather_a']").get(20)


def test_a_module_loaded_anew_is_the_new_one(rc, loaded, tmp_path):
    module = loaded("weather_a")
    assert rc[0].apply_sync(module.scaled, 2) == 6
    module.SCALE = 4
    assert rc[0].apply_sync(module.scaled, 2) == 8
    (tmp_path / "weather plugin.py").write_text(TEXT.replace("SCALE = 3", "SCALE = 500"))
    assert rc[0].apply_sync(loaded("weather_a").scaled, 2) == 1000


def test_registering_and_unregistering_take_effect_at_once(rc, loaded):
    module = loaded("by value")
    module.SCALE = 4
    view = rc.load_balanced_view()
    assert list(view.map_sync(module.scaled, [2])) == [8], "by value, with what the module has here"
    assert view.apply_sync(module.scaled, 2) == 8
    assert view.apply_sync(lambda f: f(2), module.scaled) == 8
    assert view.apply_sync(lambda s: s.scaled(), module.Sample(2)) == 8
    cloudpickle.unregister_pickle_by_value(module)
    assert list(view.map_sync(module.scaled, [2])) == [6], "by name, with what its file has"
    assert view.apply_sync(module.scaled, 2) == 6
    assert view.apply_sync(lambda f: f(2), module.scaled) == 6
    assert view.apply_sync(lambda s: s.scaled(), module.Sample(2)) == 6
    cloudpickle.register_pickle_by_value(module)
    assert view.apply_sync(module.scaled, 2) == 8, "although it was sent by name before"
    assert view.apply_sync(lambda f: f(2), module.scaled) == 8
    assert view.apply_sync(lambda s: s.scaled(), module.Sample(2)) == 8


def test_a_registered_package_stands_for_its_modules(rc, tmp_path, monkeypatch):
    package = tmp_path / "registered_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    part = importlib.import_module("registered_package.part")
    part.SCALE = 4
    cloudpickle.register_pickle_by_value(sys.modules["registered_package"])
    try:
        assert list(rc[:].map_sync(part.scaled, [1, 2])) == [4, 8]
        assert rc[0].apply_sync(lambda s: s.scaled(), part.Sample(2)) == 8
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules["registered_package"])
        for name in ("registered_package", "registered_package.part"):
            del sys.modules[name]


def test_what_cannot_be_sent_by_value_says_so_and_is_sent_with_its_module(loaded):
    module = loaded("weather_a")
    advised = r"client\.ship_module\('weather_a'\) sends the module as a file instead"
    with ipp.Cluster(n=1) as client:
        for send in (
            lambda: client[0].apply_sync(module.locked, 1),
            lambda: client[:].map_sync(module.locked, [1]),
            lambda: client.load_balanced_view().map_sync(functools.partial(module.locked), [1]),
            lambda: client[0].apply_sync(lambda f: f(1), module.locked),
            lambda: client[0].push({"locked": [module.locked]}, block=True),
        ):
            with pytest.raises(ipp.SerializationError, match=advised):
                send()
        client.ship_module("weather_a")
        assert client[0].apply_sync(module.locked, 1) == 1
        assert list(client[:].map_sync(module.locked, [1])) == [1]
        assert list(client.load_balanced_view().map_sync(functools.partial(module.locked), [1])) == [1]
        assert client[0].apply_sync(lambda f: f(1), module.locked) == 1
        client[0].push({"locked": [module.locked]}, block=True)


def test_what_is_left_out_of_a_module_is_explained(loaded):
    module = loaded("weather_a")

    @ipp.interactive
    def use(name):
        return getattr(a_module, name)(1)  # noqa: F821

    use.__globals__["a_module"] = module
    try:
        with ipp.Cluster(n=1) as client:
            for function in (use, lambda name: getattr(module, name)(1)):
                assert client[0].apply_sync(function, "scaled") == 3
                with pytest.raises(
                    ipp.RemoteError,
                    match=r"no attribute 'locked' here, and your session's .*client.ship_module\('weather_a'\)",
                ):
                    client[0].apply_sync(function, "locked")
                with pytest.raises(ipp.RemoteError, match=r"no attribute 'nothing'$"):
                    client[0].apply_sync(function, "nothing")
            client.ship_module("weather_a")
            for function in (use, lambda name: getattr(module, name)(1)):
                assert client[0].apply_sync(function, "locked") == 1
    finally:
        del use.__globals__["a_module"]


def test_an_extension_module_is_sent_as_a_file(loaded, tmp_path):
    found = find_spec("_bisect")
    if found is None or not found.has_location:
        pytest.skip("this Python has no module _bisect in a file")
    source = Path(str(found.origin))
    file = tmp_path / ("compiled" + source.name.removeprefix("_bisect"))
    file.write_bytes(source.read_bytes())
    module = load("plug._bisect", file)
    advised = r"client\.ship_module\('plug._bisect'\) sends the module as a file instead"
    with ipp.Cluster(n=1) as client:
        for send in (
            lambda: client[0].apply_sync(module.bisect_left, [1, 2, 3], 2),
            lambda: client.load_balanced_view().map_sync(module.bisect_left, [[1, 2, 3]], [2]),
            lambda: client[0].apply_sync(lambda f: f([1, 2, 3], 2), module.bisect_left),
        ):
            with pytest.raises(ipp.SerializationError, match=advised):
                send()
        client.ship_module("plug._bisect")
        assert client[0].apply_sync(module.bisect_left, [1, 2, 3], 2) == 1
        assert list(client.load_balanced_view().map_sync(module.bisect_left, [[1, 2, 3]], [2])) == [1]
        assert client[0].apply_sync(lambda f: f([1, 2, 3], 2), module.bisect_left) == 1


def test_a_name_that_no_file_can_have(rc, loaded):
    module = loaded("weather/plugin")
    assert rc[0].apply_sync(module.scaled, 2) == 6
    with pytest.raises(ValueError, match=r"has a name that no file can have: load it under another"):
        rc.ship_module(module)


def test_a_module_that_is_not_registered_is_given_itself(loaded):
    module = loaded("not registered")
    with ipp.Cluster(n=1) as client:
        with pytest.raises(ModuleNotFoundError, match="give the module itself"):
            client.ship_module("not registered")
        client.ship_module(module)
        assert client[0].apply_sync(module.imports_itself) == 3
