"""What a client shows.

`reprs` describes clients, views and results, `output` shows what tasks write, `progress` how far they are, and
`debugger` lets a user into a task. They know results and clients by `client.protocols` only.
"""

from __future__ import annotations
