"""One connection to a cluster: how it is found, what it requests from the controller, and how it ends."""
