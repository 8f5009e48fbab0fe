"""Starts the converter that draws charts, which keeps sockets of its runtime for the life of the process.

Imported while tests are collected, before the descriptors open at the start are counted.
"""

from __future__ import annotations

import pytest

vl_convert = pytest.importorskip("vl_convert")
vl_convert.vegalite_to_svg({"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x"}}})
