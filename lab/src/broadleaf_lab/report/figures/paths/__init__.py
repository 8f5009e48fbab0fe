"""Orders in which treatments are applied, as waterfalls, areas and components."""
