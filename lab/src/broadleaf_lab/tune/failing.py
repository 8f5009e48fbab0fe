"""What fails more often than the default, so that a tuning neither searches it nor recommends it silently."""

from __future__ import annotations

from broadleaf_lab.analysis import failures
from broadleaf_lab.analysis.failures import Failing, Failures, Rate
from broadleaf_lab.spec.factors import Config, changed, column_value
from broadleaf_lab.spec.study import StudySpec
from broadleaf_lab.tune.meter import Meter


def found_in(meter: Meter) -> Failures:
    """The failures of all known runs, by setting."""
    rows = [
        {
            "status": "failed" if trial.time_us is None else "ok",
            **{factor.column: column_value(trial.config[factor.name]) for factor in meter.factors},
        }
        for trial in meter.everything()
    ]
    return failures.of_runs(rows, meter.factors)


def bar(meter: Meter, study: StudySpec) -> Failures:
    """Excludes the settings that are proven to fail more often than their default from further runs."""
    found = found_in(meter)
    if any(it.proven for it in found.levels):
        meter.constraints = failures.without(study, found).rules()
    return found


def rate_of(meter: Meter, config: Config) -> Rate:
    """How often the runs of one configuration failed in this tuning."""
    name = meter.id_of(config)
    mine = [trial for trial in meter.trials if trial.config_id == name]
    return failures.rate(sum(trial.time_us is None for trial in mine), len(mine))


def beside_default(meter: Meter, config: Config, default: Config) -> Failing:
    """The failures of a configuration's own runs compared with the default's."""
    return failures.beside("", True, rate_of(meter, config), rate_of(meter, default))


def suspects(found: Failures, config: Config, meter: Meter) -> tuple[Failing, ...]:
    """The settings of a configuration that fail more often, or may; excludes those that do so only together with an
    absent setting.
    """
    told = (found.of(name, level) for name, level in changed(config, meter.factors).items())
    return tuple(
        it
        for it in told
        if it is not None
        and it.suspect
        and (it.with_setting is None or config[it.with_setting[0]] == it.with_setting[1])
    )
