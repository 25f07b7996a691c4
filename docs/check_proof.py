"""Checks a proof of `runfold proof` without Runfold, with Python's standard library alone.

    python check_proof.py proof.json PUBLIC_KEY

PUBLIC_KEY is the signer's key in hexadecimal digits, which you got from the operator before, and
not with the proof. The program prints the record, and the time at which its log was signed with it.
"""

import json
import sys
from hashlib import sha256, sha512
from pathlib import Path

P, Q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493  # the curve Ed25519: RFC 8032
D = -121665 * pow(121666, -1, P) % P


def digest(data: bytes) -> bytes:
    return sha256(data).digest()


def add(a: tuple, b: tuple) -> tuple:
    s, t = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    u, v = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    return ((t - s) * (v - u) % P, (v + u) * (t + s) % P, (v - u) * (v + u) % P, (t - s) * (t + s) % P)


def times(number: int, point: tuple) -> tuple:
    result = (0, 1, 1, 0)
    while number:
        result = add(result, point) if number & 1 else result
        number, point = number >> 1, add(point, point)
    return result


def point_of(data: bytes) -> tuple:
    y, sign = int.from_bytes(data, "little") % 2**255, data[31] >> 7
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    if len(data) != 32 or y >= P or x * x % P != square or (x == 0 and sign):
        raise ValueError("not a point of Ed25519")
    x = P - x if x & 1 != sign else x
    return (x, y, 1, x * y % P)


def is_signed(public_key: bytes, message: bytes, signature: bytes) -> bool:
    base = point_of((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    r, s = point_of(signature[:32]), int.from_bytes(signature[32:], "little")
    h = int.from_bytes(sha512(signature[:32] + public_key + message).digest(), "little") % Q
    a, b = times(s, base), add(r, times(h, point_of(public_key)))
    return (
        len(signature) == 64
        and s < Q
        and (a[0] * b[2] - b[0] * a[2]) % P == 0
        and (a[1] * b[2] - b[1] * a[2]) % P == 0
    )


def head_after(chain: bytes, digests: list[bytes]) -> bytes:
    for each in digests:
        chain += each
        if len(chain) == 17 * 32:  # after 16 records, the chain becomes one link
            chain = digest(chain)
    return digest(chain)


def root_by(leaf: bytes, path: list[bytes], index: int, count: int) -> bytes:
    node, path = digest(b"\0" + leaf), list(path)
    while count > 1:
        if index ^ 1 < count:  # a node without a sibling goes up as it is
            node = digest(b"\1" + (path.pop(0) + node if index & 1 else node + path.pop(0)))
        index, count = index >> 1, (count + 1) >> 1
    return b"" if path or index else node


def unpack(data: bytes, at: int = 0) -> tuple:
    """A value of MessagePack, and the place behind it."""
    kind, at = data[at], at + 1
    if kind < 0x80:
        return kind, at
    if kind in (0xC0, 0xC2, 0xC3):
        return None if kind == 0xC0 else kind == 0xC3, at
    if 0xCC <= kind <= 0xD3:
        size = 1 << (kind & 3)
        return int.from_bytes(data[at : at + size], "big", signed=kind >= 0xD0), at + size
    if kind & 0xE0 == 0xE0:
        return kind - 256, at
    size, width = (kind & 0x1F if kind & 0x20 else kind & 0xF), 0
    if kind >= 0xC0:
        width = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4}[kind]
        size, at = int.from_bytes(data[at : at + width], "big"), at + width
    if kind & 0xF0 == 0x90 or kind >= 0xDC:
        values = []
        for _ in range(size):
            value, at = unpack(data, at)
            values.append(value)
        return values, at
    raw = data[at : at + size]
    return raw.decode(errors="replace") if kind in range(0xA0, 0xC0) or kind >= 0xD9 else raw, at + size


def check(proof: dict, public_key: str) -> tuple[list, dict]:
    """The record and the statement, if the proof is right. Otherwise raises an error."""
    record, statement = bytes.fromhex(proof["record"]), json.loads(proof["statement"])
    topic, partition, end, head = proof["leaf"].split(" ")
    chain = bytes.fromhex(proof["chain"])
    digests = [digest(record), *map(bytes.fromhex, proof["later"])]
    values, length = unpack(record)
    path = [bytes.fromhex(node) for node in proof["path"]]
    root = root_by(proof["leaf"].encode(), path, proof["index"], statement["leaves"])
    key, signature = bytes.fromhex(public_key), bytes.fromhex(proof["signature"])
    for is_right, fault in (
        (length == len(record) and len(values) == 5, "the record is not whole"),
        (values[0] < int(end), "the record lies behind the signed head"),
        (len(chain) in range(32, 17 * 32, 32), "the chain has another form"),
        (all(len(each) == 32 for each in digests), "a digest has another length"),
        (head_after(chain, digests).hex() == head, "the chain is of another log"),
        (root.hex() == statement["root"], "the signed tree has no such head"),
        (statement["format"] == "runfold-evidence-1", "the statement has another format"),
        (statement["public_key"] == public_key, "another key has signed"),
        (is_signed(key, proof["statement"].encode(), signature), "the signature is wrong"),
    ):
        if not is_right:
            raise ValueError(fault)
    return [topic, partition, *values], statement


if __name__ == "__main__":
    try:
        found, signed = check(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        sys.exit(f"NOT PROVED: {error}")
    topic, partition, offset, log_time, key, headers, value = found
    print(f"PROVED: offset {offset} of {topic}, partition {partition}, signed at {signed['time']}")
    print(f"appended at {log_time} ms since 1970; key {key!r}; headers {dict(headers)!r}")
    print((value or b"").decode(errors="replace"))
