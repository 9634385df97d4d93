"""Paths and bodies of requests to upstreams, by dialect."""

from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.dialects.registry import DIALECTS

GENERATE, COUNT = "generateContent", "countTokens"
STREAM = "streamGenerateContent?alt=sse"


@table(
    ("endpoint", "path", "body", "model", "target"),
    [
        (Endpoint.CHAT, "/chat/completions", {"n": 1}, "m", ("/chat/completions", {"n": 1, "model": "m"})),
        (Endpoint.GEMINI, GENERATE, {"model": "x", "stream": False}, "m", (f"/models/m:{GENERATE}", {})),
        (Endpoint.GEMINI, GENERATE, {"stream": True, "contents": []}, "m", (f"/models/m:{STREAM}", {"contents": []})),
        (Endpoint.GEMINI, GENERATE, {}, "tunedModels/m", (f"/tunedModels/m:{GENERATE}", {})),
        (Endpoint.GEMINI, GENERATE, {}, "../../x?y", (f"/models/..%2F..%2Fx%3Fy:{GENERATE}", {})),
        (Endpoint.GEMINI, COUNT, {"contents": []}, "m", (f"/models/m:{COUNT}", {"contents": []})),
        (
            Endpoint.GEMINI,
            COUNT,
            {"generateContentRequest": {"model": "x", "contents": []}},
            "m",
            (f"/models/m:{COUNT}", {"generateContentRequest": {"model": "models/m", "contents": []}}),
        ),
    ],
)
def test_a_request_has_the_path_of_its_dialect_and_the_name_of_the_model(
    endpoint: Endpoint, path: str, body: Json, model: str, target: tuple[str, Json]
) -> None:
    assert DIALECTS[endpoint].make_target(path, body, model) == target
