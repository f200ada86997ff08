from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Raw(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PartRequest(_message.Message):
    __slots__ = ("run", "digest")
    RUN_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    run: str
    digest: bytes
    def __init__(self, run: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("run", "version", "offset", "root")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: int
    offset: int
    root: bytes
    def __init__(self, run: _Optional[str] = ..., version: _Optional[int] = ..., offset: _Optional[int] = ..., root: _Optional[bytes] = ...) -> None: ...

class StateOffer(_message.Message):
    __slots__ = ("version", "root", "layout_hash", "size", "offset")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    version: int
    root: bytes
    layout_hash: bytes
    size: int
    offset: int
    def __init__(self, version: _Optional[int] = ..., root: _Optional[bytes] = ..., layout_hash: _Optional[bytes] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class PushOpening(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("part", "version", "offset", "root")
    PART_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    part: bytes
    version: int
    offset: int
    root: bytes
    def __init__(self, part: _Optional[bytes] = ..., version: _Optional[int] = ..., offset: _Optional[int] = ..., root: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("run", "nonce", "payload", "want_bytes")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    WANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    run: str
    nonce: int
    payload: bytes
    want_bytes: int
    def __init__(self, run: _Optional[str] = ..., nonce: _Optional[int] = ..., payload: _Optional[bytes] = ..., want_bytes: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("peer", "nonce", "payload")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    peer: str
    nonce: int
    payload: bytes
    def __init__(self, peer: _Optional[str] = ..., nonce: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...
