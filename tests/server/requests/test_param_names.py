"""The client's names for fields of the chat request."""

from tests.table import table
from welldone.server.requests.fields import client_param_name

NAMES = {
    "messages": "input",
    "messages[1]": "input[4]",
    "messages[1].tool_calls[0].function": "input[5]",
    "stop": "ends",
}


@table(
    ("param", "name"),
    [
        ("messages", "input"),
        ("messages[0].content", "input[0].content"),
        ("messages[1].content[2]", "input[4].content[2]"),
        ("messages[1].tool_calls[0].function.arguments", "input[5].arguments"),
        ("messages[11]", "input[11]"),
        ("stop[3]", "ends[3]"),
        ("stopped", "stopped"),
        ("other.stop", "other.stop"),
        ("", ""),
    ],
)
def test_the_longest_renamed_prefix_counts(param: str, name: str) -> None:
    assert client_param_name(param, NAMES) == name
