#!/bin/sh
# pip of this checkout's .venv, for one caller at a time: two that install into an environment disturb each other.
venv=$(dirname "$0")/../.venv
exec flock "$venv/.stamps/pip.lock" "$venv/bin/python" -m pip "$@"
