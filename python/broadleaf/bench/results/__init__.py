"""The figures of a benchmark: records, tables and plots."""
