"""The environments of configurations: source trees with patches, this machine."""
