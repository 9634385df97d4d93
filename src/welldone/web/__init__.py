"""The page: a playground, the stream inspector and the server view, as static files without a build step."""
