"""Ed25519 (RFC 8032) in plain Python: slow, not for secrets, and without the packages that the libraries under test use."""

from __future__ import annotations

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, P) % P
_SQRT_OF_MINUS_1 = pow(2, (P - 1) // 4, P)
Point = tuple[int, int, int, int]
"""X, Y, Z and T with x = X / Z, y = Y / Z and x y = T / Z."""
_NEUTRAL: Point = (0, 1, 1, 0)


def _add(a: Point, b: Point) -> Point:
    low = (a[1] - a[0]) * (b[1] - b[0]) % P
    high = (a[1] + a[0]) * (b[1] + b[0]) % P
    c, d = 2 * a[3] * b[3] * _D % P, 2 * a[2] * b[2] % P
    e, f, g, h = high - low, d - c, d + c, high + low
    return e * f % P, g * h % P, f * g % P, e * h % P


def _times(factor: int, point: Point) -> Point:
    result = _NEUTRAL
    while factor:
        if factor & 1:
            result = _add(result, point)
        point = _add(point, point)
        factor >>= 1
    return result


def _equal(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0


def _x_of(y: int, sign: int) -> int | None:
    if y >= P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * _SQRT_OF_MINUS_1 % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    return P - x if x & 1 != sign else x


def _pack(point: Point) -> bytes:
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _unpack(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    y = number & (1 << 255) - 1
    x = _x_of(y, number >> 255)
    return None if x is None else (x, y, 1, x * y % P)


_Y_OF_BASE = 4 * pow(5, -1, P) % P
_X_OF_BASE = _x_of(_Y_OF_BASE, 0) or 0
_BASE: Point = (_X_OF_BASE, _Y_OF_BASE, 1, _X_OF_BASE * _Y_OF_BASE % P)


def _hash(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def _secrets(seed: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(seed).digest()
    factor = int.from_bytes(digest[:32], "little") & (1 << 254) - 8 | 1 << 254
    return factor, digest[32:]


def public_key(seed: bytes) -> bytes:
    """The key that belongs to the 32 bytes of a private one."""
    return _pack(_times(_secrets(seed)[0], _BASE))


def sign(seed: bytes, message: bytes) -> bytes:
    factor, prefix = _secrets(seed)
    nonce = _hash(prefix, message) % ORDER
    start = _pack(_times(nonce, _BASE))
    challenge = _hash(start, public_key(seed), message)
    return start + ((nonce + challenge * factor) % ORDER).to_bytes(32, "little")


def is_genuine(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the holder of the key signed the message."""
    point, start = _unpack(key), _unpack(signature[:32])
    last = int.from_bytes(signature[32:], "little")
    if point is None or start is None or last >= ORDER:
        return False
    challenge = _hash(signature[:32], key, message) % ORDER
    return _equal(_times(last, _BASE), _add(start, _times(challenge, point)))
