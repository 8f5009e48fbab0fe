"""The report of a study: every figure as files, and one HTML page that needs no network."""
