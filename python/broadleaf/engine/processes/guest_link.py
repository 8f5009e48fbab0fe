"""What a rank and the fork server of its host agree on: where they meet, and how long a message may be."""

SOCKET = "guests.sock"
MAX_BYTES = 1 << 17
