"""The check before a push in place: no large payload is sent to engines that would refuse it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broadleaf.client.views.direct import DirectView

# Smaller values are sent unchecked: the engines check anyway, and the question would cost as much.
_ASK_FROM_BYTES = 1 << 20
# Maximum number of cached answers.
_REMEMBERED = 64


class InPlace:
    """What engines have reported that they can overwrite. An engine whose answer was wrong or is outdated refuses by
    itself."""

    def __init__(self) -> None:
        self._fitting: dict[Any, Any] = {}

    def check(self, view: DirectView, values: dict[str, Any], targets: Any) -> None:
        """Asks the engines whether the values fit, if they are large and the answer is not known.

        Raises `InPlaceMismatch` for values that cannot be overwritten, and whatever the engines raise.
        """
        from broadleaf.serialize.values import form_of, n_bytes

        forms = {name: form_of(value, name) for name, value in values.items()}
        if sum(map(n_bytes, values.values())) < _ASK_FROM_BYTES:
            return
        ids, _ = view.client.resolve_targets(view.targets if targets is None else targets)
        key = (ids, tuple(forms))
        if self._fitting.get(key) == forms:
            return
        view._call("check_fit", (forms,), list(ids), block=True)
        if len(self._fitting) >= _REMEMBERED:
            self._fitting.clear()
        self._fitting[key] = forms
