"""Stands in for `broadleaf.engine.operations` on the fake's engines; acts on the namespace of the calling engine."""

from typing import Any

from broadleaf.serialize.namespace import current_namespace


def _names() -> dict[str, Any]:
    names = current_namespace()
    assert names is not None
    return names


def execute(code: str, silent: bool = False) -> dict[str, Any]:
    names = _names()
    names["_count"] = names.get("_count", 0) + 1
    try:
        value = eval(code, names)
    except SyntaxError:
        exec(code, names)
        value = None
    result = None if silent or value is None else {"data": {"text/plain": repr(value)}, "metadata": {}}
    return {"status": "ok", "execution_count": names["_count"], "execute_result": result}


def push(values: dict[str, Any]) -> None:
    for name, value in values.items():
        _names()["__pushed"] = value
        exec(f"{name} = __pushed", _names())


def pull(wanted: Any) -> Any:
    if isinstance(wanted, str):
        return eval(wanted, _names())
    return [eval(name, _names()) for name in wanted]


def clear() -> None:
    names = _names()
    for name in [name for name in names if not name.startswith("__") and name != "engine_id"]:
        del names[name]
