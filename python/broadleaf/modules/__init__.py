"""The user's own modules on engines: where engines look for them, how they are sent, and the error for a missing
one."""

# Below a host's run directory: the modules that clients have sent.
MODULES_DIR = "modules"
