"""What a client calls the fields of the chat that its request has become: errors must name what it has sent."""

from collections.abc import Mapping

from welldone.serve.errors import ApiError


def rename_error_param(error: ApiError, param_names: Mapping[str, str]) -> None:
    """Give what is wrong the client's name, in the text too: some errors have it nowhere else."""
    param = error.param
    if param is None:
        return
    error.param = client_param_name(param, param_names)
    error.message = error.message.replace(f"'{param}'", f"'{error.param}'")


def client_param_name(param: str, param_names: Mapping[str, str]) -> str:
    """A field as the client knows it. Of its beginnings the longest counts that has another name:
    `messages[2].content` may be `input[5].content`."""
    end = len(param)
    while end > 0:
        if (name := param_names.get(param[:end])) is not None:
            return name + param[end:]
        end = max(param.rfind(".", 0, end), param.rfind("[", 0, end))
    return param
