"""What reports of all kinds are drawn with: texts that cannot harm, trees of elements, files by their endings."""
