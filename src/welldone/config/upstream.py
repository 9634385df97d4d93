"""What can be set for one upstream: a server that somebody else runs, and that is asked here."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from welldone.config.settings import Setting

UPSTREAMS = "Upstreams"

ALL_RULES = "all"
"""Stands for every rule in `strict`."""

_CONCURRENCY_MAX = 65_535  # each is a connection, and there are no more ports to one server
_QUEUE_MAX = 100_000  # each waiting request keeps its body and a connection
_DAY_S = 86_400.0  # who waits longer has forgotten it


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """One upstream: where it is, what it may be asked for, and what it can and cannot do."""

    name: str
    """The name of the TOML table, or made of the address. It is a label in logs, metrics and routes."""

    url: Annotated[
        str, Setting("", "where its API begins, such as http://lab:8000/v1", UPSTREAMS, unset="must be given")
    ]
    key: Annotated[
        str | None, Setting("", "the API key that it wants; env:NAME takes it from there", UPSTREAMS, is_secret=True)
    ] = field(default=None, repr=False)
    headers: Annotated[
        dict[str, str], Setting("", "more headers that each of its requests gets", UPSTREAMS, is_secret=True)
    ] = field(default_factory=dict, repr=False)
    models: Annotated[
        tuple[str, ...],
        Setting("", "the models it is asked for; `*` stands for any letters", UPSTREAMS, unset="those that it lists"),
    ] = ()
    weight: Annotated[
        float,
        Setting("", "how much it can take, against others with the same model", UPSTREAMS, limits=(0.01, 1000)),
    ] = 1.0
    limit: Annotated[int, Setting("", "requests at once; more wait", UPSTREAMS, limits=(1, _CONCURRENCY_MAX))] = (
        256  # what vLLM runs at once if nobody says else
    )
    queue: Annotated[
        int, Setting("", "requests that may wait for it; more get status 429", UPSTREAMS, limits=(0, _QUEUE_MAX))
    ] = 64  # as for a local model
    queue_wait_s: Annotated[
        float, Setting("", "seconds to wait for it before status 503", UPSTREAMS, limits=(0, _DAY_S))
    ] = 60.0  # as for a local model
    first_byte_s: Annotated[
        float | None,
        Setting("", "seconds to its first token", UPSTREAMS, limits=(0.1, _DAY_S), unset="the server's --first-byte"),
    ] = None
    idle_s: Annotated[
        float | None,
        Setting("", "seconds from one token to the next", UPSTREAMS, limits=(0.1, _DAY_S), unset="the server's --idle"),
    ] = None
    stream: Annotated[
        bool, Setting("", "it can stream; if not, it is asked for whole replies, which are streamed here", UPSTREAMS)
    ] = True
    speaks: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "dialects beside chat that it speaks itself (responses, messages); others are translated",
            UPSTREAMS,
            choices="responses messages",
            unset="none",
        ),
    ] = ()
    n: Annotated[
        str,
        Setting(
            "",
            "who makes several choices: native, the upstream; each, one request for each; auto, by the kind of server",
            UPSTREAMS,
            choices="auto native each",
        ),
    ] = "auto"
    usage: Annotated[bool, Setting("", "ask it for usage in streams (`stream_options.include_usage`)", UPSTREAMS)] = (
        True
    )
    think: Annotated[
        str,
        Setting(
            "",
            "take thoughts out of the text: tags, leading `<think>` tags; open, where it begins inside one",
            UPSTREAMS,
            choices="no tags open",
            words={"false": "no", "true": "tags"},
        ),
    ] = "no"
    text: Annotated[
        str,
        Setting(
            "",
            "what each chunk of its text is: delta, the new text; cumulative, all of the text so far",
            UPSTREAMS,
            choices="delta cumulative",
        ),
    ] = "delta"
    strict: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "ids of rules: a reply that would need their repair is an error instead; true: all rules",
            UPSTREAMS,
            words={"true": (ALL_RULES,), "false": ()},
            unset="none",
        ),
    ] = ()
    sticky: Annotated[
        str,
        Setting(
            "",
            "what stays with one upstream while it is well, for its prompt cache",
            UPSTREAMS,
            choices="none key conversation",
        ),
    ] = "none"
    probe_s: Annotated[
        float,
        Setting("", "seconds between looks at its health; 0: never", UPSTREAMS, limits=(1, _DAY_S), words={"0": 0.0}),
    ] = 15.0  # an upstream that goes away is known within half a minute, and no server feels the looks
    health: Annotated[
        str,
        Setting(
            "", "a path from the server's root that tells its health, such as /health", UPSTREAMS, unset="its models"
        ),
    ] = ""
    ca_file: Annotated[Path | None, Setting("", "certificates to trust, as PEM", UPSTREAMS, unset="the system's")] = (
        None
    )
    insecure: Annotated[bool, Setting("", "do not check its certificate", UPSTREAMS)] = False
    is_dynamic: bool = False
    """A place in a cluster, which says who is there, if anybody: see `places`. Nobody writes this into a file."""
