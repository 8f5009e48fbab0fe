"""The examples in all public docstrings run unchanged."""

from __future__ import annotations

import doctest
import inspect

import broadleaf as ipp
import pytest
from public_names import public

EXAMPLES = {name: text for name, value, _ in public() if (text := inspect.getdoc(value) or "") and ">>>" in text}


def test_there_are_examples():
    assert {"Client.wait_for_engines", "DirectView.push", "LoadBalancedView.imap", "AsyncResult.get"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_give_what_they_say(name, rc):
    # The setup that the reference pages state for their examples.
    names = {"ipp": ipp, "rc": rc, "__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, None, None)
    said: list[str] = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
