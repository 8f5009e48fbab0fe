"""The commands `ipcluster`, `ipcontroller` and `ipengine`, by the means of Broadleaf's own."""
