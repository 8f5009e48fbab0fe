"""The model of a study: main effects, pairs, blocks and time, fitted to its runs."""
