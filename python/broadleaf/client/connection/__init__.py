"""One connection to a cluster: how it is found, what is asked of the controller, how it ends."""
