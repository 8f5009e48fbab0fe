"""What calls return.

`base` has what all results are made of. `async_result` builds on it, `maps` and `combined` on that; `execute_reply` and
`hub` are results of cells and of former clients. `pending` gives the native side these types. `iteration` loads
asyncio, so it is imported when somebody writes `async for`.
"""

from __future__ import annotations
