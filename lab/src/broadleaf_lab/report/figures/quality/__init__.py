"""How far the runs and the model can be trusted."""
