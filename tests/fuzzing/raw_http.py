"""HTTP requests that no schema makes, as bytes: by what is wrong with them."""

from __future__ import annotations

import gzip
import json
from random import Random

COMPLETIONS = "/v1/completions"
FILES = "/v1/files"
BATCHES = "/v1/batches"
JSON = "Content-Type: application/json"
BOUNDARY = "XXXX"
FORM = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
CHUNKED = "Transfer-Encoding: chunked"
DIGITS = 100_000
DEPTH = 100_000


def request(method: str, path: str, *headers: str | bytes, body: bytes = b"", length: str | None = "") -> bytes:
    """One request that ends its connection. ``length``: as Content-Length says it; its own where it is empty, and no
    such header for None."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length or len(body)}")
    return b"\r\n".join(each if isinstance(each, bytes) else each.encode() for each in lines) + b"\r\n\r\n" + body


def posted(body: bytes, path: str = COMPLETIONS) -> bytes:
    return request("POST", path, JSON, body=body)


def framed(*headers: str | bytes, body: bytes = b"{}") -> bytes:
    return request("POST", COMPLETIONS, JSON, *headers, body=body, length=None)


def formed(body: bytes, header: str = FORM) -> bytes:
    return request("POST", FILES, header, body=body)


def part(name: str, content: bytes, *headers: str) -> bytes:
    lines = [f"--{BOUNDARY}", f"Content-Disposition: form-data; {name}", *headers]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
PURPOSE = part('name="purpose"', b"batch")
UPLOAD = part('name="file"; filename="a.jsonl"', b"{}\n") + PURPOSE

FRAMES = {
    "a chunk's size is no number": framed(CHUNKED, body=b"zz\r\n{}\r\n0\r\n\r\n"),
    "a chunk's size overflows": framed(CHUNKED, body=b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n"),
    "a chunk's size is negative": framed(CHUNKED, body=b"-2\r\n{}\r\n0\r\n\r\n"),
    "a chunk is longer than it says": framed(CHUNKED, body=b"1\r\n{}\r\n0\r\n\r\n"),
    "a chunk does not come": framed(CHUNKED, body=b"ff\r\n{}"),
    "the last chunk does not come": framed(CHUNKED, body=b"2\r\n{}\r\n"),
    "a chunk's extension is endless": framed(CHUNKED, body=b"2;" + b"x" * 100_000 + b"\r\n{}\r\n0\r\n\r\n"),
    "chunked and with a length": framed(CHUNKED, "Content-Length: 2", body=b"2\r\n{}\r\n0\r\n\r\n"),
    "an unknown transfer coding": framed("Transfer-Encoding: chunky"),
    "chunked twice": framed("Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "a length that is no number": framed("Content-Length: many"),
    "a negative length": framed("Content-Length: -2"),
    "a length with a sign": framed("Content-Length: +2"),
    "two lengths": framed("Content-Length: 2", "Content-Length: 3"),
    "a length beyond all numbers": framed("Content-Length: " + "9" * 40),
    "a length of 16 EB": framed(f"Content-Length: {2**64 - 1}"),
    "a body that stops half-way": framed("Content-Length: 1000"),
    "no length and no body": framed(body=b""),
    "expects to be told to go on": framed("Expect: 100-continue", "Content-Length: 2"),
    "expects something else": framed("Expect: the unexpected", "Content-Length: 2"),
    "upgrades to a web socket": request("GET", "/health", "Upgrade: websocket", "Sec-WebSocket-Key: x"),
    "upgrades to HTTP/2": request("GET", "/health", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 64,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 512,
    "HTTP/0.9": b"GET /health\r\n",
    "no HTTP": b"\x00\x01\x02\xff" * 200 + b"\r\n\r\n",
    "an unknown method": request("BREW", "/health"),
    "a method of another kind": request("DELETE", COMPLETIONS),
    "a header without a name": framed(": x", "Content-Length: 2"),
    "a header with a space in its name": framed("a b: x", "Content-Length: 2"),
    "a header with NUL": framed(b"X: \x00", "Content-Length: 2"),
    "a header over two lines": framed("X: a\r\n b", "Content-Length: 2"),
    "a header that is no text": framed(b"X-Request-ID: \xff\xfe", "Content-Length: 2"),
    "a key that is no text": framed(b"Authorization: Bearer \xff\xfe\xfa", "Content-Length: 2"),
    "a key of 50 kB": framed("Authorization: Bearer " + "x" * 50_000, "Content-Length: 2"),
    "ten thousand headers": framed(*(f"X-{number}: y" for number in range(10_000)), "Content-Length: 2"),
    "an origin that is no text": request("GET", "/health", b"Origin: \xff"),
}
PATHS = {
    f"path {path[:30]}": request("GET", path)
    for path in (
        "/%00",
        "/v1/files/%00",
        "/v1/files/%ff%fe",
        "/v1/files/..%2f..%2fetc%2fpasswd",
        "/../../etc/passwd",
        "/v1/files/" + "x" * 5000,
        "/v1/files/*",
        "/v1/files/%3E",
        "/v1/files/a.b%20c",
        "/v1/batches/%0d%0aX:%20y",
        "/v1/batches/*",
        "/v1/models/%00/x",
        "/v1/files?limit=" + "9" * 10_000,
        "/v1/files?limit=nan",
        "/v1/files?after=%00%ff",
        "/v1/batches?limit=-1&after=*",
        "/v1/batches?" + "&".join(f"a{number}=b" for number in range(5000)),
        "//health",
        "http://elsewhere/health",
        "*",
        "/dashboard/..%2f..%2f..%2fetc/passwd",
        "/dashboard/%00",
    )
}
BODIES = {
    "nothing": b"",
    "no JSON": b"\x00",
    "no text": b'{"prompt": "\xff\xfe"}',
    "UTF-16": json.dumps({"prompt": "x"}).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a list": b"[]",
    "nested lists": b'{"prompt": ' + b"[" * DEPTH + b"]" * DEPTH + b"}",
    "nested objects": b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
    "an integer of many digits": b'{"prompt": "x", "max_tokens": ' + b"9" * DIGITS + b"}",
    "a seed of many digits": b'{"prompt": "x", "seed": -' + b"9" * DIGITS + b"}",
    "a number of many digits": b'{"prompt": "x", "temperature": 0.' + b"9" * DIGITS + b"}",
    "an exponent of many digits": b'{"prompt": "x", "temperature": 1e' + b"9" * DIGITS + b"}",
    "tokens of many digits": b'{"prompt": [' + b"9" * DIGITS + b"]}",
    "no number": b'{"prompt": "x", "temperature": NaN}',
    "infinity": b'{"prompt": "x", "temperature": 1e999}',
    "a lone surrogate": b'{"prompt": "\\ud800", "max_tokens": 1}',
    "a lone surrogate as model": b'{"model": "\\udfff", "prompt": "x"}',
    "a lone surrogate as name of a field": b'{"\\ud800": 1, "prompt": "x"}',
    "a lone surrogate as user": b'{"user": "\\ud800", "prompt": "x", "max_tokens": 1}',
    "a lone surrogate as stop": b'{"stop": "\\ud800", "prompt": "x", "max_tokens": 1}',
    "NUL": b'{"prompt": "\\u0000", "max_tokens": 1}',
    "NUL as model": b'{"model": "\\u0000", "prompt": "x"}',
    "NUL as stop": b'{"stop": ["\\u0000"], "prompt": "x", "max_tokens": 1}',
    "fields twice": b'{"prompt": "x", "prompt": ["y"], "max_tokens": 1, "max_tokens": 2}',
    "a field of a thousand letters": b'{"' + b"x" * 1000 + b'": 1}',
    "ten thousand fields": json.dumps({f"x{number}": 1 for number in range(10_000)}).encode(),
    "a schema that is nested": json.dumps(
        {"prompt": "x", "guided_json": {"type": "array"}, "stop": ["x"] * 1000}
    ).encode(),
    "tokens beyond the vocabulary": b'{"prompt": [99999999], "max_tokens": 1}',
    "negative tokens": b'{"prompt": [-1], "max_tokens": 1}',
    "a bias of unknown tokens": b'{"prompt": "x", "max_tokens": 1, "logit_bias": {"-1": 5, "9999999999999999999": 1}}',
}
ENCODED = {
    f"a body in {coding}": request("POST", COMPLETIONS, JSON, f"Content-Encoding: {coding}", body=body)
    for coding, body in (
        ("gzip", gzip.compress(b"[" * 10_000_000)),
        ("deflate", b"\x78\x9c" + b"\x00" * 100),
        ("br", b"\x00" * 100),
        ("zip, gzip", b"PK"),
    )
}
KINDS = ("", "text/plain", "application/json; charset=utf-16", "application/jsonx", "x" * 1000, "multipart/form-data")
TYPES = {
    f"content type {kind[:40]!r}": request("POST", path, f"Content-Type: {kind}", body=b"{}")
    for path in (COMPLETIONS, FILES)
    for kind in (
        "",
        "text/plain",
        "application/json; charset=utf-16",
        "application/jsonx",
        "x" * 1000,
        "multipart/form-data",
    )
}
FORMS = {
    "no boundary": formed(UPLOAD + END, "Content-Type: multipart/form-data"),
    "an empty boundary": formed(UPLOAD + END, "Content-Type: multipart/form-data; boundary="),
    "a boundary of 10 kB": formed(UPLOAD + END, "Content-Type: multipart/form-data; boundary=" + "x" * 10_000),
    "a boundary in another charset": formed(UPLOAD + END, 'Content-Type: multipart/form-data; boundary="ü"'),
    "a charset that nobody knows": formed(UPLOAD + END, f"{FORM}; charset=klingon"),
    "another boundary": formed(UPLOAD.replace(b"XXXX", b"YYYY")),
    "no last boundary": formed(UPLOAD),
    "half a boundary": formed(UPLOAD[:-4]),
    "nothing": formed(b""),
    "only the end": formed(END),
    "a part without a head": formed(f"--{BOUNDARY}\r\n\r\nx\r\n".encode() + END),
    "a part without a name": formed(part('filename="a"', b"{}") + PURPOSE + END),
    "a part's head of 1 MB": formed(part('name="file"; filename="a"', b"{}", "X: " + "x" * 1_000_000) + END),
    "a thousand parts": formed(part('name="x"', b"y") * 1000 + END),
    "a field of 2 MB": formed(part('name="purpose"', b"x" * 2_000_000) + END),
    "the file twice": formed(UPLOAD + UPLOAD + END),
    "the purpose twice": formed(UPLOAD + PURPOSE + END),
    "a file name with NUL": formed(part('name="file"; filename="a\x00b"', b"{}\n") + PURPOSE + END),
    "a file name with a path": formed(part('name="file"; filename="../../../etc/passwd"', b"{}\n") + PURPOSE + END),
    "a file name that is no text": formed(part('name="file"; filename="\ud800"', b"{}\n") + PURPOSE + END),
    "a file name of 100 kB": formed(part(f'name="file"; filename="{"x" * 100_000}"', b"{}\n") + PURPOSE + END),
    "the purpose as a file": formed(part('name="purpose"; filename="x"', b"batch") + END),
    "the file as a field": formed(part('name="file"', b"{}") + PURPOSE + END),
    "an expiry of many digits": formed(
        UPLOAD
        + part('name="expires_after[anchor]"', b"created_at")
        + part('name="expires_after[seconds]"', b"9" * 10_000)
        + END
    ),
    "a form that stops half-way": request("POST", FILES, FORM, body=UPLOAD, length="100000"),
    "bytes behind the end": formed(UPLOAD + END + b"\x00" * 10_000),
    "base64": formed(part('name="file"; filename="a"', b"e30K", "Content-Transfer-Encoding: base64") + PURPOSE + END),
}


def all_requests() -> dict[str, bytes]:
    """Each by what is wrong with it."""
    json_paths = (COMPLETIONS, "/v1/chat/completions", "/v1/responses", BATCHES)
    bodies = {f"{name} to {path}": posted(body, path) for name, body in BODIES.items() for path in json_paths}
    return {**FRAMES, **PATHS, **ENCODED, **TYPES, **bodies, **{f"form: {name}": each for name, each in FORMS.items()}}


def spoiled(random: Random) -> bytes:
    """One of them with some bytes changed, doubled or left out."""
    data = bytearray(random.choice(list(all_requests().values()))[:4000])
    for _ in range(random.randrange(1, 6)):
        place = random.randrange(len(data))
        change = random.randrange(3)
        if change == 0:
            data[place] = random.randrange(256)
        elif change == 1:
            del data[place : place + random.randrange(1, 20)]
            data = data or bytearray(b"\r\n")
        else:
            data[place:place] = data[place : place + random.randrange(1, 50)]
    return bytes(data)
