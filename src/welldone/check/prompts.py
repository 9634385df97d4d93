"""What probes say to models: short, plain, and such that a small model answers as well as a large one."""

HELLO_PROMPT = "Say hello."
COUNT_PROMPT = "Count from 1 to 200. Write only the numbers, separated by commas."
"""The answer is long, known in its form, and made of many tokens: it reaches any small limit."""
EMOJI_PROMPT = "Repeat exactly: 👋🌍 naïve café, 你好, привет 🎉"
"""An answer in which most characters take several bytes, and some emoji several tokens."""
