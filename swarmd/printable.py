"""Text from elsewhere (peers, models, files) made safe for a terminal."""

from __future__ import annotations

_LINE_BREAKS_AND_TABS = "\n\t"


def printable(text: str) -> str:
    """Replace every control character but newline and tab, so that no text can steer the terminal it is shown on."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    # str.isprintable is too strict for prose: it also refuses no-break spaces and the joiners inside emoji.
    control = character < " " or "\x7f" <= character < "\xa0"
    return "�" if control and character not in _LINE_BREAKS_AND_TABS else character
