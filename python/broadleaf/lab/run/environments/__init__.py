"""What a configuration runs in: source trees with patches, interpreters, this machine."""
