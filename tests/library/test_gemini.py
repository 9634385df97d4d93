"""The public repairers for Google's API."""

import json

from tests.protocol.gemini_streams import ANSWER, ERROR, WHOLE, frames
from welldone import StreamRepairer, repair, repair_response


def test_streams_and_replies_of_google_are_repaired() -> None:
    sent = b"".join(repair([b": hi\n\n", frames(*ANSWER), b"data: [DONE]\n\n"], "gemini"))
    assert [json.loads(line[6:]) for line in sent.decode().splitlines() if line] == list(ANSWER)
    stream = StreamRepairer("gemini")
    cut = stream.feed(frames(*ANSWER[:2])) + stream.close()
    assert json.loads(cut.decode().split("data: ")[-1])["error"]["status"] == "INTERNAL"
    assert stream.result.failure is not None
    for body in (json.dumps(WHOLE).encode(), json.dumps(list(ANSWER)).encode(), frames(*ANSWER)):
        assert json.loads(repair_response(body, "gemini").body) == WHOLE
    refused = repair_response(json.dumps(ERROR).encode(), "gemini", status=503)
    assert (refused.status, json.loads(refused.body)) == (503, ERROR)
