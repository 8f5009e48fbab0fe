"""What a cluster stores on disk: its files, their owner, and the keys and addresses in them."""
