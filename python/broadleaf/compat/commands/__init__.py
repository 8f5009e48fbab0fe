"""The commands `ipcluster`, `ipcontroller` and `ipengine`, implemented with Broadleaf's own."""
