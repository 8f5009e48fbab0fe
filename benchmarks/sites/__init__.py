"""One adapter per system that starts its workers on the hosts of a site, with its scheduler or by SSH; and the command
that measures them.
"""
