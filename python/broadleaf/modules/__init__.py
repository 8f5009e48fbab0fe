"""The user's own modules on engines: where they are looked for, how they are sent, what is said of a missing one."""

# Below a host's run directory: the modules that clients have sent.
MODULES_DIR = "modules"
