"""One adapter per system under test, which uses only its public API."""
