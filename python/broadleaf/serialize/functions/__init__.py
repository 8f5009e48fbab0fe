"""Functions on their way to engines: by value, with what they capture and require."""
