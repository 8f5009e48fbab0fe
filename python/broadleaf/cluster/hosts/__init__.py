"""What runs on each host: its host process, its relay, its cores."""
