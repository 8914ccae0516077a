"""The reward of the examples of this folder: a format."""

import string

FORMAT = string.ascii_lowercase + " "


def reward_format(completions, **_):
    """The share of each completion's characters that are small letters or spaces."""
    return [sum(each in FORMAT for each in text) / max(1, len(text)) for text in completions]
