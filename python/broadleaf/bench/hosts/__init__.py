"""Several hosts on one machine, and broadcasts over them."""
