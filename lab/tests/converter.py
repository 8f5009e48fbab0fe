"""Charts are what Vega-Lite's schema allows; and the converter that draws them, which keeps sockets of its runtime for
the life of the process.

Imported while tests are collected, before the descriptors open at the start are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broadleaf_lab.report.figures.base import Figure

vl_convert = pytest.importorskip("vl_convert")
vl_convert.vegalite_to_svg({"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x"}}})


def validated(figure: Figure) -> dict[str, Any]:
    """The chart, checked against the schema."""
    import altair as alt

    alt.Chart.from_dict(figure.spec)
    return figure.spec
