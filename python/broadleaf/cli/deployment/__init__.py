"""Commands on how a cluster gets its hosts: by hand, in an allocation, and what to do where one does not come."""
