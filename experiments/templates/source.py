"""Data of my own, for a task that reads text."""


def mine():
    """Yields documents; other tasks read (text, label), (sentence, translation) or arrays."""
    for number in range(2000):
        yield f"The square of {number} is {number * number}.\n"
