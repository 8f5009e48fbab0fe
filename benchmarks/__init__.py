"""Measurements of Broadleaf and of what else does its work; not part of the package that users install."""
