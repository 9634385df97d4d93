"""The exceptions of the core: a mistake of our own caller, never a peer's odd stream.

WelldoneError
└── OutOfTurnError   an event was sent that may not come now
"""


class WelldoneError(Exception):
    """The root: catch it to catch all of ours."""


class EventOrderError(WelldoneError):
    """An event that may not come now."""

    def __init__(self, event: str, phase: str, legal: str) -> None:
        super().__init__(f"{event} while {phase}; legal now: {legal or 'nothing'}")
        self.event = event
        self.phase = phase
        self.legal = legal
