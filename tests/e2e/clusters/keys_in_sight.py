"""What a task finds if it looks for its cluster's private keys."""


def keys_in_sight():
    """Where a task finds a private key in the frames below it, and in what these name."""
    import base64
    import re
    import sys

    def is_key(text):
        found = re.findall(rb"M[A-Za-z0-9+/]{60,}={0,2}", text)
        return any(base64.b64decode(key + b"==").startswith(b"\x30\x51\x02\x01\x01") for key in found)

    def holds(value, depth):
        if isinstance(value, str):
            return is_key(value.encode("utf-8", "replace"))
        if isinstance(value, bytes | bytearray):
            return is_key(bytes(value))
        if depth == 0:
            return False
        if isinstance(value, dict):
            return any(holds(item, depth - 1) for item in list(value.values()))
        if isinstance(value, list | tuple | set):
            return any(holds(item, depth - 1) for item in value)
        return any(holds(item, depth - 1) for item in list(getattr(value, "__dict__", {}).values()))

    seen = []
    frame = sys._getframe(1)
    while frame is not None:
        for names in (frame.f_locals, frame.f_globals):
            seen += [(frame.f_code.co_name, name) for name, value in list(names.items()) if holds(value, 3)]
        frame = frame.f_back
    seen += [("module", name) for name, module in list(sys.modules.items()) if holds(vars(module), 2)]
    return seen
