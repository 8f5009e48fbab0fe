"""What affects times without being a treatment or a block: the time of the run, and a covariate."""
