"""What a study declares and stores: its file, its factors and constraints, its runs."""
