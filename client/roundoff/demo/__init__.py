"""The demo: a small GPT in bfloat16, trained several ways on English text that every CPython carries."""
