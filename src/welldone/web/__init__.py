"""Static files of the page: chat, stream inspector and server view. No build step."""
