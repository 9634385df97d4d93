"""Request bodies: validation and translation into the bodies for engines and upstreams. No I/O, no clock."""
