"""Two versions beside each other, and whole ranges of them."""
