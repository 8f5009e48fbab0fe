"""Why two settings interact: what the runs of their cells use, and where their time goes, side by side."""
