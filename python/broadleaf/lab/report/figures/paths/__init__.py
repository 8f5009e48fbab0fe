"""Orders of applying treatments, as waterfalls, areas and components."""
