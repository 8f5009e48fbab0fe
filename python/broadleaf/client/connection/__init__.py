"""One connection to a cluster: how it is found, what it asks of the controller, how it ends."""
