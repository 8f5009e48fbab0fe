"""Ways of addressing engines, each an object with the same methods.

`base` has what they share. `direct` sends each of its engines a message, and `broadcast`, a direct view too, one to all
of them; `balanced` takes whichever engine is free. `executor` makes an executor of any of them.
"""

from __future__ import annotations
