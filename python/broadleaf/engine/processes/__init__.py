"""Engine processes: how they are started, captured and ended, as processes of a fork server or ranks."""
