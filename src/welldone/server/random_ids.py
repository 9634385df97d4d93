"""Random ids. They are as hard to guess as those of `secrets`, for one system call in a hundred ids."""

import os

_POOL_BYTES = 2048
_pool = bytearray()


def random_hex(size: int) -> str:
    """Return `size` random bytes as hexadecimal digits."""
    if len(_pool) < size:
        _pool.extend(os.urandom(_POOL_BYTES))
    taken = bytes(_pool[-size:])
    del _pool[-size:]
    return taken.hex()


os.register_at_fork(after_in_child=_pool.clear)
