"""Commands that give a cluster its hosts: by hand, or in an allocation; and what to do if one does not come up."""
