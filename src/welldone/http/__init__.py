"""HTTP/1.1: the server, the client with its connection pool, and the recording client of `check`."""
