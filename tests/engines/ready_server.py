"""Program that answers every request with 200 and `{}`, on a Unix socket or a port: an engine that starts at once."""

import socket
import sys

REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


def main(kind: str, address: str) -> None:
    """Serve until a signal arrives."""
    unix = kind == "--socket"
    listener = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    listener.bind(address if unix else ("127.0.0.1", int(address)))
    listener.listen()
    while True:
        connection, _ = listener.accept()
        with connection:
            request = b""
            while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
                request += piece
            connection.sendall(REPLY)


if __name__ == "__main__":
    main(*sys.argv[1:])
