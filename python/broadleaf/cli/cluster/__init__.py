"""Commands on clusters: starting, joining, watching and stopping them."""
