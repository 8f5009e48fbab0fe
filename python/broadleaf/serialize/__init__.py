"""How functions, arguments, results and exceptions become bytes and come back."""
