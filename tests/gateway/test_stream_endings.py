"""The end of a stream whose server has died."""

import json

from welldone.gateway.stream_endings import error_ending


def test_a_response_with_many_tools_ends_as_failed() -> None:
    tools = [{"type": "function", "name": f"f{number}", "parameters": {}} for number in range(12_000)]
    created = {"type": "response.created", "response": {"id": "resp_1", "tools": tools, "status": "in_progress"}}
    first = f"event: response.created\ndata: {json.dumps(created)}\n\n".encode()
    event = json.loads(error_ending("responses", first, 7).partition(b"data: ")[2])
    assert (event["type"], event["sequence_number"], event["response"]["status"]) == ("response.failed", 7, "failed")
    assert event["response"]["tools"] == tools
