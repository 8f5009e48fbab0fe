"""How functions, values and exceptions become bytes and come back.

`values` pickles plainly and falls back on `by_value`, which loads cloudpickle and so is imported only then. `functions`
makes bodies and the callables of them, `chunks` calls these on the items of a map, `errors` brings exceptions back, and
`preparation` and `modules` send the user's modules. `picklers`, `unfindable`, `namespace` and `snapshot` import none of
these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadleaf.extensions import old_attribute

PROTOCOL = 5
"""The pickle protocol: the first one with out-of-band buffers."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return old_attribute("broadleaf.serialize", name)
