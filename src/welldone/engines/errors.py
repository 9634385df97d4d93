"""Errors of engines."""


class EngineError(Exception):
    """An engine did not start, or is not available any more.

    `message` may be sent to clients: it contains no path and no secret. `details` are the engine's last output lines,
    for the server's log. A permanent error recurs until the configuration or the machine is changed.
    """

    def __init__(
        self,
        message: str,
        *,
        is_permanent: bool = False,
        retry_after_s: float | None = None,
        details: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.is_permanent = is_permanent
        self.retry_after_s = retry_after_s
        self.details = details
