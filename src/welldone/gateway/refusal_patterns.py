"""Messages of servers that refuse a request with the status of a failure. `check` reads them without the gateway."""

import re

# Messages and codes for a prompt that does not fit. Some servers send them with 500.
OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size"  # codes of OpenAI and llama.cpp
    r"|maximum context length"  # OpenAI, vLLM, SGLang
    r"|exceeds? (?:the )?(?:available |maximum |model's )*context"  # llama.cpp, LocalAI, Ollama
    r"|longer than the (?:model's context|maximum model) length"  # SGLang, older vLLM
    r"|`inputs` (?:tokens \+|must have less than)"  # TGI
    r"|context the overflows|prompt is too long"  # LM Studio, others
    r"|input token count [^.]{0,40}exceeds the maximum"  # Google
    r"|(?:input|prompt) (?:token )?len[^.]{0,80}(?:too long|>)",  # LightLLM
    re.IGNORECASE,
)
# llama.cpp and ik_llama.cpp answer some bad requests with 500.
BAD_REQUEST = re.compile(
    r"json\.exception\.(?:type_error\.302|out_of_range\.403)|^Failed to parse (?:messages|tools|grammar)|^Expected '"
    r"|^Invalid tool_choice|^'\w+' is required"
    r"|(?:image|audio|video) input is not supported|must contain 'content'|^Only one completion choice"
    r"|^response_format type must be|^Unsupported param",
    re.IGNORECASE,
)
