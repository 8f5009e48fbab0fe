"""What runs on each host: its fork server, its relay, its cores."""
