"""What several test modules of the laboratory share: a planted study and its report, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broadleaf.lab.report.build import Report
    from broadleaf.lab.report.collect import Collected
    from broadleaf.lab.study import Study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The planted study with all its runs."""
    from planted import written_study

    return written_study(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="session")
def found(study: Study) -> Collected:
    """Its data and models."""
    from broadleaf.lab.report.collect import collect

    return collect(study)


@pytest.fixture(scope="session")
def report(study: Study, found: Collected) -> Report:
    """Its report, without images."""
    from broadleaf.lab.report.build import write

    with pytest.MonkeyPatch.context() as patch:
        # Collected once for all tests.
        patch.setattr("broadleaf.lab.report.build.collect", lambda _: found)
        return write(study, images=False)
