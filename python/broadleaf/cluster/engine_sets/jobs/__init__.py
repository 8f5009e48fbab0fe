"""Engine sets whose blocks are jobs of a scheduler, and what they share."""
