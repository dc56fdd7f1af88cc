"""Identities of KV blocks in Dynamo (ai-dynamo-runtime 1.6.1, lib/tokens): XXH3 of a block's tokens, chained.

XXH3 is Yann Collet's 64-bit hash with a seed (xxHash specification, version 0.2.0).
"""

from __future__ import annotations

from collections.abc import Iterable

SEED = 1337
MASK = (1 << 64) - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
MX1, MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
STRIPE, STRIPES = 64, 16
"""Bytes of a stripe, and stripes of a block, of a long input."""


def sequence_hash(parent: int | None, tokens: Iterable[int]) -> int:
    """Return the identity of a block of tokens after the block `parent`, which is None for a prompt's first one."""
    own = xxh3(b"".join(token.to_bytes(4, "little") for token in tokens))
    return own if parent is None else xxh3(parent.to_bytes(8, "little") + own.to_bytes(8, "little"))


def xxh3(data: bytes, seed: int = SEED) -> int:
    """Return the hash of at least 4 bytes."""
    length = len(data)
    if length <= 8:
        return _to_8(data, seed)
    if length <= 16:
        low = _u64(data) ^ ((_u64(SECRET, 24) ^ _u64(SECRET, 32)) + seed & MASK)
        high = _u64(data, length - 8) ^ ((_u64(SECRET, 40) ^ _u64(SECRET, 48)) - seed & MASK)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(length + swapped + high + _folded(low, high))
    if length <= 128:
        found = length * P64[0]
        for i in range((length - 1) // 32, -1, -1):
            found += _mixed(data, 16 * i, 32 * i, seed) + _mixed(data, length - 16 * (i + 1), 32 * i + 16, seed)
        return _avalanche(found)
    if length <= 240:
        found = _avalanche(length * P64[0] + sum(_mixed(data, 16 * i, 16 * i, seed) for i in range(8)))
        found += sum(_mixed(data, 16 * i, 16 * (i - 8) + 3, seed) for i in range(8, length // 16))
        return _avalanche(found + _mixed(data, length - 16, 136 - 17, seed))
    return _long(data, seed)


def _u64(data: bytes, at: int = 0) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _folded(a: int, b: int) -> int:
    product = a * b
    return product & MASK ^ product >> 64


def _avalanche(h: int) -> int:
    h &= MASK
    h = (h ^ h >> 37) * MX1 & MASK
    return h ^ h >> 32


def _mixed(data: bytes, at: int, secret: int, seed: int) -> int:
    low = _u64(data, at) ^ (_u64(SECRET, secret) + seed & MASK)
    high = _u64(data, at + 8) ^ (_u64(SECRET, secret + 8) - seed & MASK)
    return _folded(low, high)


def _to_8(data: bytes, seed: int) -> int:
    first, last = (int.from_bytes(part, "little") for part in (data[:4], data[-4:]))
    seed ^= int.from_bytes(seed.to_bytes(8, "little")[:4], "big") << 32
    h = (last + (first << 32)) ^ ((_u64(SECRET, 8) ^ _u64(SECRET, 16)) - seed & MASK)
    h ^= _rotated(h, 49) ^ _rotated(h, 24)
    h = h * MX2 & MASK
    h = (h ^ (h >> 35) + len(data)) * MX2 & MASK
    return h ^ h >> 28


def _rotated(h: int, bits: int) -> int:
    return (h << bits | h >> 64 - bits) & MASK


def _long(data: bytes, seed: int) -> int:
    halves = [(_u64(SECRET, at) + (seed if at % 16 == 0 else -seed)) & MASK for at in range(0, len(SECRET), 8)]
    secret = b"".join(half.to_bytes(8, "little") for half in halves)
    sums = [P32[2], *P64[:4], P32[1], P64[4], P32[0]]
    for stripe in range((len(data) - 1) // STRIPE):
        turn = stripe % STRIPES
        _accumulate(sums, data, stripe * STRIPE, secret, turn * 8)
        if turn == STRIPES - 1:
            sums = [((h ^ h >> 47) ^ _u64(secret, 128 + 8 * i)) * P32[0] & MASK for i, h in enumerate(sums)]
    _accumulate(sums, data, len(data) - STRIPE, secret, 121)
    pairs = [
        _folded(sums[i] ^ _u64(secret, 11 + 8 * i), sums[i + 1] ^ _u64(secret, 19 + 8 * i)) for i in range(0, 8, 2)
    ]
    return _avalanche(len(data) * P64[0] + sum(pairs))


def _accumulate(sums: list[int], data: bytes, at: int, secret: bytes, key: int) -> None:
    for i in range(8):
        value = _u64(data, at + 8 * i)
        keyed = value ^ _u64(secret, key + 8 * i)
        sums[i ^ 1] = (sums[i ^ 1] + value) & MASK
        sums[i] = (sums[i] + (keyed & 0xFFFFFFFF) * (keyed >> 32)) & MASK
