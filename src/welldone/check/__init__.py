"""Asks a server what clients ask, and says which rules of the stream it keeps."""
