"""One adapter a system under test, over its public API alone."""
