"""Dialect of Google's Gemini API (generateContent, streamGenerateContent)."""
