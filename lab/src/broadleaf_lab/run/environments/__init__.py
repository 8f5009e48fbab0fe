"""The environments of configurations: source trees with patches, interpreters, this machine."""
