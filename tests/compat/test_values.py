"""Addresses, times and mappings of `ipyparallel.util`."""

import socket
from datetime import UTC, datetime

import pytest
from broadleaf.util import (
    Namespace,
    ReverseDict,
    compare_datetimes,
    disambiguate_ip_address,
    disambiguate_url,
    extract_dates,
    int_keys,
    is_url,
    select_random_ports,
    split_url,
    validate_url,
    validate_url_container,
)


def test_addresses():
    assert split_url("tcp://10.0.0.1:5555") == ("tcp", "10.0.0.1", "5555")
    assert is_url("ipc:///tmp/x")
    assert not is_url("http://x")
    assert validate_url("tcp://*:1")
    validate_url_container({"a": ["tcp://h:1", ("tcp://h:2",)]})
    for bad in ("tcp://h", "tcp://h:x", "http://h:1", "tcp://-:1", "nothing"):
        with pytest.raises(AssertionError):
            validate_url(bad)
    with pytest.raises(TypeError):
        validate_url(5)


def test_an_address_to_connect_to():
    assert disambiguate_ip_address("10.1.2.3", "elsewhere") == "10.1.2.3"
    assert disambiguate_ip_address("0.0.0.0") == "127.0.0.1"
    assert disambiguate_ip_address("*", socket.gethostname()) == "127.0.0.1"
    assert disambiguate_ip_address("*", "192.0.2.7") == "192.0.2.7"
    assert disambiguate_url("tcp://*:10101") == "tcp://127.0.0.1:10101"
    assert disambiguate_url("ipc:///tmp/x") == "ipc:///tmp/x"


def test_random_ports_are_different():
    assert len(set(select_random_ports(10))) == 10


def test_times():
    early, late = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2)
    assert (compare_datetimes(early, late), compare_datetimes(late, early), compare_datetimes(early, early)) == (
        -1,
        1,
        0,
    )
    found = extract_dates({"a": ["2020-01-01T00:00:00+00:00", "no time", 3]})
    assert found == {"a": [early, "no time", 3]}


def test_mappings():
    namespace = Namespace(a=1)
    namespace.b = 2
    assert (namespace.a, namespace["b"]) == (1, 2)
    with pytest.raises(NameError):
        namespace.c  # noqa: B018
    with pytest.raises(KeyError):
        namespace.keys = 1
    both = ReverseDict(a=1)
    both["b"] = 2
    assert (both["a"], both[1], both.get(2), both.get("c", "none")) == (1, "a", "b", "none")
    assert both.pop("a") == 1
    assert 1 not in both._keys
    assert int_keys({"1": "a", "x": "b"}) == {1: "a", "x": "b"}
