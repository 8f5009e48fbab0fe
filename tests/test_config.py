"""Options: layers, origins, checks."""

import pytest
from broadleaf import config
from broadleaf.config import ConfigError, resolve


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path))
    for option in config.OPTIONS.values():
        monkeypatch.delenv(option.variable, raising=False)
    return tmp_path


def test_defaults_have_their_own_type():
    settings = resolve()
    for option in config.OPTIONS.values():
        assert option.check(option.default, "default") == option.default
        assert settings.origin(option.name) == "default"


def test_each_layer_wins_over_those_before(base, monkeypatch):
    profile = base / "profiles" / "p"
    profile.mkdir(parents=True)
    (base / "config.toml").write_text("prefetch_min = 3\nprefetch_max = 30\nsteal = false\nlog_level = 'debug'\n")
    (profile / "config.toml").write_text("prefetch_max = 40\nsteal = true\nlog_level = 'error'\n")
    monkeypatch.setenv("BROADLEAF_STEAL", "off")
    monkeypatch.setenv("BROADLEAF_LOG_LEVEL", "info")
    settings = resolve({"log_level": "off", "tls": None}, profile)
    assert (settings["prefetch_min"], settings.origin("prefetch_min")) == (3, str(base / "config.toml"))
    assert (settings["prefetch_max"], settings.origin("prefetch_max")) == (40, str(profile / "config.toml"))
    assert (settings["steal"], settings.origin("steal")) == (False, "environment BROADLEAF_STEAL")
    assert (settings["log_level"], settings.origin("log_level")) == ("off", "argument")
    assert (settings["tls"], settings.origin("tls")) == (True, "default")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefetch_mx": 1}, "did you mean 'prefetch_max'"),
        ({"prefetch_max": 0}, "at least 1"),
        ({"prefetch_max": "many"}, "expected a number"),
        ({"prefetch_max": 1.5}, "whole number"),
        ({"prefetch_max": True}, "expected a number"),
        ({"stop_grace_s": float("nan")}, "at least 0"),
        ({"stop_grace_s": "inf"}, "finite"),
        ({"stop_grace_s": 1e12}, "at most"),
        ({"prefetch_max": 5000}, "at most 4096"),
        ({"prefetch_target_us": 2**63}, "at most"),
        ({"history_tasks": "99999999999"}, "at most 16777216"),
        ({"steal": "maybe"}, "expected on or off"),
        ({"log_level": "loud"}, "expected one of off, error, info, debug"),
        ({"preload": 3}, "expected a list"),
        ({"log_sink": 3}, "expected text"),
        ({"listen": "localhost"}, "expected host:port"),
        ({"affinity": "0-"}, "expected none, spread, or a list"),
    ],
)
def test_faults_are_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        resolve(arguments)


def test_faults_name_their_origin(base, monkeypatch):
    monkeypatch.setenv("BROADLEAF_STEAL", "maybe")
    with pytest.raises(ConfigError, match="environment BROADLEAF_STEAL"):
        resolve()
    monkeypatch.delenv("BROADLEAF_STEAL")
    (base / "config.toml").write_text("steal =")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        resolve()


def test_lists_are_split_at_commas_and_spaces():
    assert resolve({"preload": "auto, scipy numpy"})["preload"] == ["auto", "scipy", "numpy"]
    assert resolve({"preload": ["a"]})["preload"] == ["a"]


def test_native_form():
    native = resolve({"log_level": "debug"}).to_native()
    assert native["log_level"] == 3
    assert native["pool_max_bytes"] is None
    assert resolve({"pool_max_bytes": 5}).to_native()["pool_max_bytes"] == 5


def test_the_documentation_lists_every_option():
    listed = config.markdown_list()
    for option in config.OPTIONS.values():
        assert f"`{option.name}`\n: {option.meaning}\n" in listed
        assert option.meaning.endswith(".")


def test_every_number_has_a_bound_that_fits_the_native_parts():
    for option in config.OPTIONS.values():
        if option.kind in ("int", "float"):
            assert option.minimum <= option.default <= option.maximum < 2**48 + 1, option.name
            assert option.check(option.maximum, "argument") == option.maximum
            with pytest.raises(ConfigError, match=f"{option.name}.*at most"):
                option.check(option.maximum * 2, "argument")
