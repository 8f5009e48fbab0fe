"""Cells, shells, kernels and debuggers on an engine."""
