"""The commands: one file each. `show` is the only printer."""
