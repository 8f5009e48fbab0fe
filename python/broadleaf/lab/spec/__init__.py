"""What a study says and keeps: its file, its factors and constraints, its runs."""
