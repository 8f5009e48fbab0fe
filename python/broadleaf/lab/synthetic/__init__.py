"""Systems whose truth is known, as studies to hold an analysis against."""
