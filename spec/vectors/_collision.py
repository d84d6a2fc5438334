"""Different texts with the same XXH64: the hash is no secret, and two words cancel each other out."""

from __future__ import annotations

from _primitives import _MASK_64, _P1, _P2, _round

FIRST_WORD = slice(0, 8)
SECOND_WORD = slice(32, 40)
"""Both go into the first of the four lanes, one block after the other."""


def colliding_text(text: bytes, number: int) -> bytes:
    """Another text of 64 printable bytes or more with the same hash; `number` says which."""
    if len(text) < 64:
        raise ValueError("two blocks are needed")
    start = (_P1 + _P2) & _MASK_64
    first = int.from_bytes(text[FIRST_WORD], "little")
    second = int.from_bytes(text[SECOND_WORD], "little")
    after_first = _round(start, first)
    inverse = pow(_P2, -1, 1 << 64)
    tried = 0
    while True:
        other = b"%08d" % tried
        tried += 1
        difference = after_first - _round(start, int.from_bytes(other, "little"))
        word = (second + difference * inverse & _MASK_64).to_bytes(8, "little")
        if all(0x20 <= letter <= 0x7E for letter in word):
            if number == 0:
                return other + text[8:32] + word + text[40:]
            number -= 1
