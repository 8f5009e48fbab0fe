"""One adapter a system that starts its workers on the hosts of a site, by its scheduler or by SSH."""
