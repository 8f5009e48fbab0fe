"""How functions, arguments, results and exceptions become bytes and come back."""

PROTOCOL = 5
"""Of pickle: the first with buffers out of band."""
