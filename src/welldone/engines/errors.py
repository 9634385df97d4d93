"""Why an engine cannot be had."""


class EngineError(Exception):
    """An engine that did not start, or that is not wanted any more.

    `message` may be shown to a client: it holds no path and no secret. `details` are the engine's last words, for the
    log of whoever runs the server. A permanent fault comes again until somebody changes something.
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
