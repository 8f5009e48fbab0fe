"""Two commands against each other, without a study: `broadleaf-lab vs`."""
