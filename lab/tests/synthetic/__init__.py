"""Systems whose truth is known, as studies with which to check an analysis."""
