"""What a cluster keeps on disk: its files, whose they are, and the keys and addresses in them."""
