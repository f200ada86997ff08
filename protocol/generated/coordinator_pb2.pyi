from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Section(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SECTION_UNSPECIFIED: _ClassVar[Section]
    SECTION_PARAMETERS: _ClassVar[Section]
    SECTION_BUFFERS: _ClassVar[Section]

class StopRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_RULE_UNSPECIFIED: _ClassVar[StopRule]
    STOP_RULE_STEPS: _ClassVar[StopRule]
    STOP_RULE_TIME: _ClassVar[StopRule]
    STOP_RULE_SAMPLES: _ClassVar[StopRule]
SECTION_UNSPECIFIED: Section
SECTION_PARAMETERS: Section
SECTION_BUFFERS: Section
STOP_RULE_UNSPECIFIED: StopRule
STOP_RULE_STEPS: StopRule
STOP_RULE_TIME: StopRule
STOP_RULE_SAMPLES: StopRule

class PartKey(_message.Message):
    __slots__ = ("round", "section", "part", "attempt")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SECTION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    round: int
    section: Section
    part: int
    attempt: int
    def __init__(self, round: _Optional[int] = ..., section: _Optional[_Union[Section, str]] = ..., part: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Contact(_message.Message):
    __slots__ = ("peer", "address")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    peer: str
    address: str
    def __init__(self, peer: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class FragmentShape(_message.Message):
    __slots__ = ("parameters", "buffers")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    parameters: int
    buffers: int
    def __init__(self, parameters: _Optional[int] = ..., buffers: _Optional[int] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("hash", "values", "fragments")
    HASH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    hash: bytes
    values: int
    fragments: _containers.RepeatedCompositeFieldContainer[FragmentShape]
    def __init__(self, hash: _Optional[bytes] = ..., values: _Optional[int] = ..., fragments: _Optional[_Iterable[_Union[FragmentShape, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("run", "major", "minor", "instance", "session", "version", "root", "layout", "address", "name", "device", "software", "helper")
    RUN_FIELD_NUMBER: _ClassVar[int]
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    HELPER_FIELD_NUMBER: _ClassVar[int]
    run: str
    major: int
    minor: int
    instance: str
    session: int
    version: int
    root: bytes
    layout: Layout
    address: str
    name: str
    device: str
    software: str
    helper: bool
    def __init__(self, run: _Optional[str] = ..., major: _Optional[int] = ..., minor: _Optional[int] = ..., instance: _Optional[str] = ..., session: _Optional[int] = ..., version: _Optional[int] = ..., root: _Optional[bytes] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., address: _Optional[str] = ..., name: _Optional[str] = ..., device: _Optional[str] = ..., software: _Optional[str] = ..., helper: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("phase", "steps", "loss", "tokens_per_s", "up_bytes_s", "down_bytes_s", "round", "samples")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    UP_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    DOWN_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    phase: str
    steps: int
    loss: float
    tokens_per_s: float
    up_bytes_s: float
    down_bytes_s: float
    round: int
    samples: int
    def __init__(self, phase: _Optional[str] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., up_bytes_s: _Optional[float] = ..., down_bytes_s: _Optional[float] = ..., round: _Optional[int] = ..., samples: _Optional[int] = ...) -> None: ...

class StateReady(_message.Message):
    __slots__ = ("version", "root", "layout", "data")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    version: int
    root: bytes
    layout: Layout
    data: bytes
    def __init__(self, version: _Optional[int] = ..., root: _Optional[bytes] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Locate(_message.Message):
    __slots__ = ("version", "failed")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    version: int
    failed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., failed: _Optional[_Iterable[str]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("round", "weight", "samples", "steps", "loss", "train_s", "note", "norm")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    round: int
    weight: int
    samples: int
    steps: int
    loss: float
    train_s: float
    note: str
    norm: float
    def __init__(self, round: _Optional[int] = ..., weight: _Optional[int] = ..., samples: _Optional[int] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ..., train_s: _Optional[float] = ..., note: _Optional[str] = ..., norm: _Optional[float] = ...) -> None: ...

class PartClosed(_message.Message):
    __slots__ = ("key", "contributors", "divisor", "digest", "refused")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    DIVISOR_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    key: PartKey
    contributors: _containers.RepeatedScalarFieldContainer[str]
    divisor: float
    digest: bytes
    refused: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[_Union[PartKey, _Mapping]] = ..., contributors: _Optional[_Iterable[str]] = ..., divisor: _Optional[float] = ..., digest: _Optional[bytes] = ..., refused: _Optional[_Iterable[str]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("section", "part", "attempt", "digest")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    section: Section
    part: int
    attempt: int
    digest: bytes
    def __init__(self, section: _Optional[_Union[Section, str]] = ..., part: _Optional[int] = ..., attempt: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Have(_message.Message):
    __slots__ = ("round", "items")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    round: int
    items: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, round: _Optional[int] = ..., items: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("version", "sent_bytes", "received_bytes", "train_s", "wait_s", "norm", "cosine")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    version: int
    sent_bytes: int
    received_bytes: int
    train_s: float
    wait_s: float
    norm: float
    cosine: float
    def __init__(self, version: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., train_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., norm: _Optional[float] = ..., cosine: _Optional[float] = ...) -> None: ...

class Fingerprint(_message.Message):
    __slots__ = ("version", "root")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    version: int
    root: bytes
    def __init__(self, version: _Optional[int] = ..., root: _Optional[bytes] = ...) -> None: ...

class Evaluated(_message.Message):
    __slots__ = ("version", "bits_per_byte", "tokens")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_BYTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    version: int
    bits_per_byte: float
    tokens: int
    def __init__(self, version: _Optional[int] = ..., bits_per_byte: _Optional[float] = ..., tokens: _Optional[int] = ...) -> None: ...

class Complaint(_message.Message):
    __slots__ = ("round", "peer", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    peer: str
    reason: str
    def __init__(self, round: _Optional[int] = ..., peer: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session", "term", "resumed", "version", "spec", "heartbeat_s", "lost_after_s", "group")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    LOST_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    session: int
    term: int
    resumed: bool
    version: int
    spec: bytes
    heartbeat_s: float
    lost_after_s: float
    group: int
    def __init__(self, session: _Optional[int] = ..., term: _Optional[int] = ..., resumed: _Optional[bool] = ..., version: _Optional[int] = ..., spec: _Optional[bytes] = ..., heartbeat_s: _Optional[float] = ..., lost_after_s: _Optional[float] = ..., group: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "reason", "fix")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    fix: str
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class BuildOrigin(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Donors(_message.Message):
    __slots__ = ("version", "contacts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    contacts: _containers.RepeatedCompositeFieldContainer[Contact]
    def __init__(self, version: _Optional[int] = ..., contacts: _Optional[_Iterable[_Union[Contact, _Mapping]]] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("to",)
    TO_FIELD_NUMBER: _ClassVar[int]
    to: Contact
    def __init__(self, to: _Optional[_Union[Contact, _Mapping]] = ...) -> None: ...

class CatchUp(_message.Message):
    __slots__ = ("commits", "contacts")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    contacts: _containers.RepeatedCompositeFieldContainer[Contact]
    def __init__(self, commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ..., contacts: _Optional[_Iterable[_Union[Contact, _Mapping]]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("round", "group", "fragment", "base", "lease", "quota", "committed_tokens", "expected_tokens", "members", "stop", "seconds")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    round: int
    group: int
    fragment: int
    base: int
    lease: _containers.RepeatedCompositeFieldContainer[Span]
    quota: int
    committed_tokens: int
    expected_tokens: int
    members: int
    stop: StopRule
    seconds: float
    def __init__(self, round: _Optional[int] = ..., group: _Optional[int] = ..., fragment: _Optional[int] = ..., base: _Optional[int] = ..., lease: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., quota: _Optional[int] = ..., committed_tokens: _Optional[int] = ..., expected_tokens: _Optional[int] = ..., members: _Optional[int] = ..., stop: _Optional[_Union[StopRule, str]] = ..., seconds: _Optional[float] = ...) -> None: ...

class Wrap(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("reducer", "section", "start", "stop", "attempt")
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    SECTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    reducer: Contact
    section: Section
    start: int
    stop: int
    attempt: int
    def __init__(self, reducer: _Optional[_Union[Contact, _Mapping]] = ..., section: _Optional[_Union[Section, str]] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("peer", "weight")
    PEER_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    peer: str
    weight: int
    def __init__(self, peer: _Optional[str] = ..., weight: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("round", "term", "group", "fragment", "base", "contributions", "members", "shares", "deadline_s")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    round: int
    term: int
    group: int
    fragment: int
    base: int
    contributions: _containers.RepeatedCompositeFieldContainer[Contribution]
    members: _containers.RepeatedScalarFieldContainer[str]
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    deadline_s: float
    def __init__(self, round: _Optional[int] = ..., term: _Optional[int] = ..., group: _Optional[int] = ..., fragment: _Optional[int] = ..., base: _Optional[int] = ..., contributions: _Optional[_Iterable[_Union[Contribution, _Mapping]]] = ..., members: _Optional[_Iterable[str]] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class Replan(_message.Message):
    __slots__ = ("round", "shares")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    round: int
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    def __init__(self, round: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("round", "parts", "contacts")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    parts: _containers.RepeatedCompositeFieldContainer[Held]
    contacts: _containers.RepeatedCompositeFieldContainer[Contact]
    def __init__(self, round: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., contacts: _Optional[_Iterable[_Union[Contact, _Mapping]]] = ...) -> None: ...

class ContributorLost(_message.Message):
    __slots__ = ("round", "peer")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    round: int
    peer: str
    def __init__(self, round: _Optional[int] = ..., peer: _Optional[str] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("section", "part", "attempt", "digest", "contributors", "divisor", "inclusion")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    DIVISOR_FIELD_NUMBER: _ClassVar[int]
    INCLUSION_FIELD_NUMBER: _ClassVar[int]
    section: Section
    part: int
    attempt: int
    digest: bytes
    contributors: _containers.RepeatedScalarFieldContainer[str]
    divisor: float
    inclusion: int
    def __init__(self, section: _Optional[_Union[Section, str]] = ..., part: _Optional[int] = ..., attempt: _Optional[int] = ..., digest: _Optional[bytes] = ..., contributors: _Optional[_Iterable[str]] = ..., divisor: _Optional[float] = ..., inclusion: _Optional[int] = ...) -> None: ...

class Inclusion(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, peers: _Optional[_Iterable[str]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("version", "round", "group", "fragment", "base", "parts", "committed_tokens", "outer_lr", "outer_momentum", "contacts", "inclusions")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTER_LR_FIELD_NUMBER: _ClassVar[int]
    OUTER_MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    INCLUSIONS_FIELD_NUMBER: _ClassVar[int]
    version: int
    round: int
    group: int
    fragment: int
    base: int
    parts: _containers.RepeatedCompositeFieldContainer[Decision]
    committed_tokens: int
    outer_lr: float
    outer_momentum: float
    contacts: _containers.RepeatedCompositeFieldContainer[Contact]
    inclusions: _containers.RepeatedCompositeFieldContainer[Inclusion]
    def __init__(self, version: _Optional[int] = ..., round: _Optional[int] = ..., group: _Optional[int] = ..., fragment: _Optional[int] = ..., base: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., committed_tokens: _Optional[int] = ..., outer_lr: _Optional[float] = ..., outer_momentum: _Optional[float] = ..., contacts: _Optional[_Iterable[_Union[Contact, _Mapping]]] = ..., inclusions: _Optional[_Iterable[_Union[Inclusion, _Mapping]]] = ...) -> None: ...

class Abandoned(_message.Message):
    __slots__ = ("round", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    reason: str
    def __init__(self, round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Evaluate(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("version", "root", "reason")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: int
    root: bytes
    reason: str
    def __init__(self, version: _Optional[int] = ..., root: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("waiting_for", "have", "need", "fix")
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    NEED_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    waiting_for: str
    have: int
    need: int
    fix: str
    def __init__(self, waiting_for: _Optional[str] = ..., have: _Optional[int] = ..., need: _Optional[int] = ..., fix: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("version", "reason", "run_is_over")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUN_IS_OVER_FIELD_NUMBER: _ClassVar[int]
    version: int
    reason: str
    run_is_over: bool
    def __init__(self, version: _Optional[int] = ..., reason: _Optional[str] = ..., run_is_over: _Optional[bool] = ...) -> None: ...

class Dismissed(_message.Message):
    __slots__ = ("reason", "may_return", "copy_is_safe")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MAY_RETURN_FIELD_NUMBER: _ClassVar[int]
    COPY_IS_SAFE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    may_return: bool
    copy_is_safe: bool
    def __init__(self, reason: _Optional[str] = ..., may_return: _Optional[bool] = ..., copy_is_safe: _Optional[bool] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Barred(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, peers: _Optional[_Iterable[str]] = ...) -> None: ...

class Measure(_message.Message):
    __slots__ = ("to",)
    TO_FIELD_NUMBER: _ClassVar[int]
    to: Contact
    def __init__(self, to: _Optional[_Union[Contact, _Mapping]] = ...) -> None: ...

class Reachability(_message.Message):
    __slots__ = ("address", "reason", "fix")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    address: str
    reason: str
    fix: str
    def __init__(self, address: _Optional[str] = ..., reason: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class GetStatus(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPeers(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class GetRounds(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class GetEvents(_message.Message):
    __slots__ = ("limit", "after")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: int
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class GetSettings(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLeaderboard(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class MakeInvite(_message.Message):
    __slots__ = ("uses", "hours")
    USES_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    uses: int
    hours: float
    def __init__(self, uses: _Optional[int] = ..., hours: _Optional[float] = ...) -> None: ...

class GetInvites(_message.Message):
    __slots__ = ("spent",)
    SPENT_FIELD_NUMBER: _ClassVar[int]
    spent: bool
    def __init__(self, spent: _Optional[bool] = ...) -> None: ...

class RevokeInvite(_message.Message):
    __slots__ = ("invite",)
    INVITE_FIELD_NUMBER: _ClassVar[int]
    invite: str
    def __init__(self, invite: _Optional[str] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Resume(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Stop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Kick(_message.Message):
    __slots__ = ("peer", "reason")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    peer: str
    reason: str
    def __init__(self, peer: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Ban(_message.Message):
    __slots__ = ("peer", "reason")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    peer: str
    reason: str
    def __init__(self, peer: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Unban(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    def __init__(self, peer: _Optional[str] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    def __init__(self, peer: _Optional[str] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("role", "name", "public_key", "tls_key", "binding", "days")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    TLS_KEY_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    DAYS_FIELD_NUMBER: _ClassVar[int]
    role: str
    name: str
    public_key: bytes
    tls_key: bytes
    binding: bytes
    days: float
    def __init__(self, role: _Optional[str] = ..., name: _Optional[str] = ..., public_key: _Optional[bytes] = ..., tls_key: _Optional[bytes] = ..., binding: _Optional[bytes] = ..., days: _Optional[float] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("run", "term", "phase", "waiting_for", "version", "round", "members", "min_peers", "committed_tokens", "total_tokens", "bits_per_byte", "evaluated_version", "root", "unit")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MIN_PEERS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_BYTE_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    run: str
    term: int
    phase: str
    waiting_for: str
    version: int
    round: int
    members: int
    min_peers: int
    committed_tokens: int
    total_tokens: int
    bits_per_byte: float
    evaluated_version: int
    root: str
    unit: str
    def __init__(self, run: _Optional[str] = ..., term: _Optional[int] = ..., phase: _Optional[str] = ..., waiting_for: _Optional[str] = ..., version: _Optional[int] = ..., round: _Optional[int] = ..., members: _Optional[int] = ..., min_peers: _Optional[int] = ..., committed_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., bits_per_byte: _Optional[float] = ..., evaluated_version: _Optional[int] = ..., root: _Optional[str] = ..., unit: _Optional[str] = ...) -> None: ...

class PeerView(_message.Message):
    __slots__ = ("peer", "name", "session", "state", "address", "device", "version", "phase", "silent_s", "tokens_per_s", "loss", "committed_tokens", "software", "draining", "certificate_until", "warning", "reach", "helper", "up_bytes_s", "down_bytes_s", "seen_from")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    HELPER_FIELD_NUMBER: _ClassVar[int]
    UP_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    DOWN_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    SEEN_FROM_FIELD_NUMBER: _ClassVar[int]
    peer: str
    name: str
    session: int
    state: str
    address: str
    device: str
    version: int
    phase: str
    silent_s: float
    tokens_per_s: float
    loss: float
    committed_tokens: int
    software: str
    draining: bool
    certificate_until: float
    warning: str
    reach: str
    helper: bool
    up_bytes_s: float
    down_bytes_s: float
    seen_from: str
    def __init__(self, peer: _Optional[str] = ..., name: _Optional[str] = ..., session: _Optional[int] = ..., state: _Optional[str] = ..., address: _Optional[str] = ..., device: _Optional[str] = ..., version: _Optional[int] = ..., phase: _Optional[str] = ..., silent_s: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., loss: _Optional[float] = ..., committed_tokens: _Optional[int] = ..., software: _Optional[str] = ..., draining: _Optional[bool] = ..., certificate_until: _Optional[float] = ..., warning: _Optional[str] = ..., reach: _Optional[str] = ..., helper: _Optional[bool] = ..., up_bytes_s: _Optional[float] = ..., down_bytes_s: _Optional[float] = ..., seen_from: _Optional[str] = ...) -> None: ...

class RoundView(_message.Message):
    __slots__ = ("round", "version", "state", "members", "contributors", "weight", "sent_bytes", "gather_s", "reduce_s", "commit_s", "reason", "train_s", "wait_s", "received_bytes", "expected_weight", "expected_bytes", "expected_gather_s", "absent", "gather_limit_s", "part_limit_s", "reduce_limit_s", "delivery_limit_s", "usual_gather_s", "usual_reduce_s", "usual_commit_s", "peers")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GATHER_S_FIELD_NUMBER: _ClassVar[int]
    REDUCE_S_FIELD_NUMBER: _ClassVar[int]
    COMMIT_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GATHER_S_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    GATHER_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    PART_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    REDUCE_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    USUAL_GATHER_S_FIELD_NUMBER: _ClassVar[int]
    USUAL_REDUCE_S_FIELD_NUMBER: _ClassVar[int]
    USUAL_COMMIT_S_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    round: int
    version: int
    state: str
    members: int
    contributors: int
    weight: int
    sent_bytes: int
    gather_s: float
    reduce_s: float
    commit_s: float
    reason: str
    train_s: float
    wait_s: float
    received_bytes: int
    expected_weight: int
    expected_bytes: int
    expected_gather_s: float
    absent: _containers.RepeatedScalarFieldContainer[str]
    gather_limit_s: float
    part_limit_s: float
    reduce_limit_s: float
    delivery_limit_s: float
    usual_gather_s: float
    usual_reduce_s: float
    usual_commit_s: float
    peers: _containers.RepeatedCompositeFieldContainer[RoundPeerView]
    def __init__(self, round: _Optional[int] = ..., version: _Optional[int] = ..., state: _Optional[str] = ..., members: _Optional[int] = ..., contributors: _Optional[int] = ..., weight: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., gather_s: _Optional[float] = ..., reduce_s: _Optional[float] = ..., commit_s: _Optional[float] = ..., reason: _Optional[str] = ..., train_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., received_bytes: _Optional[int] = ..., expected_weight: _Optional[int] = ..., expected_bytes: _Optional[int] = ..., expected_gather_s: _Optional[float] = ..., absent: _Optional[_Iterable[str]] = ..., gather_limit_s: _Optional[float] = ..., part_limit_s: _Optional[float] = ..., reduce_limit_s: _Optional[float] = ..., delivery_limit_s: _Optional[float] = ..., usual_gather_s: _Optional[float] = ..., usual_reduce_s: _Optional[float] = ..., usual_commit_s: _Optional[float] = ..., peers: _Optional[_Iterable[_Union[RoundPeerView, _Mapping]]] = ...) -> None: ...

class RoundPeerView(_message.Message):
    __slots__ = ("peer", "name", "outcome", "weight", "ready_s", "limit_s", "norm", "cosine")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    READY_S_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    peer: str
    name: str
    outcome: str
    weight: int
    ready_s: float
    limit_s: float
    norm: float
    cosine: float
    def __init__(self, peer: _Optional[str] = ..., name: _Optional[str] = ..., outcome: _Optional[str] = ..., weight: _Optional[int] = ..., ready_s: _Optional[float] = ..., limit_s: _Optional[float] = ..., norm: _Optional[float] = ..., cosine: _Optional[float] = ...) -> None: ...

class EventView(_message.Message):
    __slots__ = ("at", "text", "number", "level")
    AT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    at: float
    text: str
    number: int
    level: str
    def __init__(self, at: _Optional[float] = ..., text: _Optional[str] = ..., number: _Optional[int] = ..., level: _Optional[str] = ...) -> None: ...

class SettingView(_message.Message):
    __slots__ = ("key", "value", "initial", "meaning")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    initial: str
    meaning: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., initial: _Optional[str] = ..., meaning: _Optional[str] = ...) -> None: ...

class Contributor(_message.Message):
    __slots__ = ("peer", "name", "tokens", "rounds", "sent_bytes", "received_bytes", "here", "banned")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    BANNED_FIELD_NUMBER: _ClassVar[int]
    peer: str
    name: str
    tokens: int
    rounds: int
    sent_bytes: int
    received_bytes: int
    here: bool
    banned: bool
    def __init__(self, peer: _Optional[str] = ..., name: _Optional[str] = ..., tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., here: _Optional[bool] = ..., banned: _Optional[bool] = ...) -> None: ...

class Peers(_message.Message):
    __slots__ = ("peers", "more")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerView]
    more: bool
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerView, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class Rounds(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[RoundView]
    def __init__(self, rounds: _Optional[_Iterable[_Union[RoundView, _Mapping]]] = ...) -> None: ...

class Events(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[EventView]
    def __init__(self, events: _Optional[_Iterable[_Union[EventView, _Mapping]]] = ...) -> None: ...

class RunSettings(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[SettingView]
    def __init__(self, settings: _Optional[_Iterable[_Union[SettingView, _Mapping]]] = ...) -> None: ...

class Leaderboard(_message.Message):
    __slots__ = ("contributors", "committed_tokens")
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    contributors: _containers.RepeatedCompositeFieldContainer[Contributor]
    committed_tokens: int
    def __init__(self, contributors: _Optional[_Iterable[_Union[Contributor, _Mapping]]] = ..., committed_tokens: _Optional[int] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("peer", "role", "certificate", "ca")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    peer: str
    role: str
    certificate: str
    ca: str
    def __init__(self, peer: _Optional[str] = ..., role: _Optional[str] = ..., certificate: _Optional[str] = ..., ca: _Optional[str] = ...) -> None: ...

class Invitation(_message.Message):
    __slots__ = ("line", "uses", "hours", "id")
    LINE_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    line: str
    uses: int
    hours: float
    id: str
    def __init__(self, line: _Optional[str] = ..., uses: _Optional[int] = ..., hours: _Optional[float] = ..., id: _Optional[str] = ...) -> None: ...

class InviteView(_message.Message):
    __slots__ = ("id", "state", "uses_left", "enrolled", "made_at", "expires_at", "made_by")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    USES_LEFT_FIELD_NUMBER: _ClassVar[int]
    ENROLLED_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    uses_left: int
    enrolled: int
    made_at: float
    expires_at: float
    made_by: str
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., uses_left: _Optional[int] = ..., enrolled: _Optional[int] = ..., made_at: _Optional[float] = ..., expires_at: _Optional[float] = ..., made_by: _Optional[str] = ...) -> None: ...

class Invites(_message.Message):
    __slots__ = ("invites",)
    INVITES_FIELD_NUMBER: _ClassVar[int]
    invites: _containers.RepeatedCompositeFieldContainer[InviteView]
    def __init__(self, invites: _Optional[_Iterable[_Union[InviteView, _Mapping]]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class AdminError(_message.Message):
    __slots__ = ("reason", "fix")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    reason: str
    fix: str
    def __init__(self, reason: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class Enrol(_message.Message):
    __slots__ = ("run", "token", "public_key", "tls_key", "binding")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    TLS_KEY_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    run: str
    token: str
    public_key: bytes
    tls_key: bytes
    binding: bytes
    def __init__(self, run: _Optional[str] = ..., token: _Optional[str] = ..., public_key: _Optional[bytes] = ..., tls_key: _Optional[bytes] = ..., binding: _Optional[bytes] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("run", "public_key", "tls_key", "binding")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    TLS_KEY_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    run: str
    public_key: bytes
    tls_key: bytes
    binding: bytes
    def __init__(self, run: _Optional[str] = ..., public_key: _Optional[bytes] = ..., tls_key: _Optional[bytes] = ..., binding: _Optional[bytes] = ...) -> None: ...

class Enrolled(_message.Message):
    __slots__ = ("peer", "certificate", "ca", "session_addresses", "now")
    PEER_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    SESSION_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    peer: str
    certificate: str
    ca: str
    session_addresses: _containers.RepeatedScalarFieldContainer[str]
    now: float
    def __init__(self, peer: _Optional[str] = ..., certificate: _Optional[str] = ..., ca: _Optional[str] = ..., session_addresses: _Optional[_Iterable[str]] = ..., now: _Optional[float] = ...) -> None: ...

class Look(_message.Message):
    __slots__ = ("run", "token", "payload", "want_bytes")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    WANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    run: str
    token: str
    payload: bytes
    want_bytes: int
    def __init__(self, run: _Optional[str] = ..., token: _Optional[str] = ..., payload: _Optional[bytes] = ..., want_bytes: _Optional[int] = ...) -> None: ...

class Looked(_message.Message):
    __slots__ = ("now", "seen_from", "trouble", "payload", "certificate_s")
    NOW_FIELD_NUMBER: _ClassVar[int]
    SEEN_FROM_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_S_FIELD_NUMBER: _ClassVar[int]
    now: float
    seen_from: str
    trouble: str
    payload: bytes
    certificate_s: float
    def __init__(self, now: _Optional[float] = ..., seen_from: _Optional[str] = ..., trouble: _Optional[str] = ..., payload: _Optional[bytes] = ..., certificate_s: _Optional[float] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("session", "term", "hello", "heartbeat", "state_ready", "locate", "ready", "part_closed", "have", "applied", "fingerprint", "evaluated", "complaint", "goodbye", "welcome", "refused", "build_origin", "donors", "catch_up", "open", "wrap", "plan", "replan", "contributor_lost", "commit", "abandoned", "evaluate", "resync", "notice", "finish", "dismissed", "leave", "barred", "push", "reachability", "measure", "fetch")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STATE_READY_FIELD_NUMBER: _ClassVar[int]
    LOCATE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PART_CLOSED_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    COMPLAINT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BUILD_ORIGIN_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    WRAP_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REPLAN_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTOR_LOST_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    DISMISSED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    BARRED_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    REACHABILITY_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    session: int
    term: int
    hello: Hello
    heartbeat: Heartbeat
    state_ready: StateReady
    locate: Locate
    ready: Ready
    part_closed: PartClosed
    have: Have
    applied: Applied
    fingerprint: Fingerprint
    evaluated: Evaluated
    complaint: Complaint
    goodbye: Goodbye
    welcome: Welcome
    refused: Refused
    build_origin: BuildOrigin
    donors: Donors
    catch_up: CatchUp
    open: Open
    wrap: Wrap
    plan: Plan
    replan: Replan
    contributor_lost: ContributorLost
    commit: Commit
    abandoned: Abandoned
    evaluate: Evaluate
    resync: Resync
    notice: Notice
    finish: Finish
    dismissed: Dismissed
    leave: Leave
    barred: Barred
    push: Push
    reachability: Reachability
    measure: Measure
    fetch: Fetch
    def __init__(self, session: _Optional[int] = ..., term: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., state_ready: _Optional[_Union[StateReady, _Mapping]] = ..., locate: _Optional[_Union[Locate, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., part_closed: _Optional[_Union[PartClosed, _Mapping]] = ..., have: _Optional[_Union[Have, _Mapping]] = ..., applied: _Optional[_Union[Applied, _Mapping]] = ..., fingerprint: _Optional[_Union[Fingerprint, _Mapping]] = ..., evaluated: _Optional[_Union[Evaluated, _Mapping]] = ..., complaint: _Optional[_Union[Complaint, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., build_origin: _Optional[_Union[BuildOrigin, _Mapping]] = ..., donors: _Optional[_Union[Donors, _Mapping]] = ..., catch_up: _Optional[_Union[CatchUp, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., wrap: _Optional[_Union[Wrap, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., replan: _Optional[_Union[Replan, _Mapping]] = ..., contributor_lost: _Optional[_Union[ContributorLost, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abandoned: _Optional[_Union[Abandoned, _Mapping]] = ..., evaluate: _Optional[_Union[Evaluate, _Mapping]] = ..., resync: _Optional[_Union[Resync, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., dismissed: _Optional[_Union[Dismissed, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., barred: _Optional[_Union[Barred, _Mapping]] = ..., push: _Optional[_Union[Push, _Mapping]] = ..., reachability: _Optional[_Union[Reachability, _Mapping]] = ..., measure: _Optional[_Union[Measure, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ...) -> None: ...

class AdminCommand(_message.Message):
    __slots__ = ("get_status", "get_peers", "get_rounds", "get_events", "make_invite", "pause", "resume", "stop", "kick", "ban", "unban", "drain", "change", "grant", "get_settings", "get_leaderboard", "get_invites", "revoke_invite")
    GET_STATUS_FIELD_NUMBER: _ClassVar[int]
    GET_PEERS_FIELD_NUMBER: _ClassVar[int]
    GET_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    GET_EVENTS_FIELD_NUMBER: _ClassVar[int]
    MAKE_INVITE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    KICK_FIELD_NUMBER: _ClassVar[int]
    BAN_FIELD_NUMBER: _ClassVar[int]
    UNBAN_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    GET_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    GET_LEADERBOARD_FIELD_NUMBER: _ClassVar[int]
    GET_INVITES_FIELD_NUMBER: _ClassVar[int]
    REVOKE_INVITE_FIELD_NUMBER: _ClassVar[int]
    get_status: GetStatus
    get_peers: GetPeers
    get_rounds: GetRounds
    get_events: GetEvents
    make_invite: MakeInvite
    pause: Pause
    resume: Resume
    stop: Stop
    kick: Kick
    ban: Ban
    unban: Unban
    drain: Drain
    change: Change
    grant: Grant
    get_settings: GetSettings
    get_leaderboard: GetLeaderboard
    get_invites: GetInvites
    revoke_invite: RevokeInvite
    def __init__(self, get_status: _Optional[_Union[GetStatus, _Mapping]] = ..., get_peers: _Optional[_Union[GetPeers, _Mapping]] = ..., get_rounds: _Optional[_Union[GetRounds, _Mapping]] = ..., get_events: _Optional[_Union[GetEvents, _Mapping]] = ..., make_invite: _Optional[_Union[MakeInvite, _Mapping]] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., kick: _Optional[_Union[Kick, _Mapping]] = ..., ban: _Optional[_Union[Ban, _Mapping]] = ..., unban: _Optional[_Union[Unban, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., change: _Optional[_Union[Change, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., get_settings: _Optional[_Union[GetSettings, _Mapping]] = ..., get_leaderboard: _Optional[_Union[GetLeaderboard, _Mapping]] = ..., get_invites: _Optional[_Union[GetInvites, _Mapping]] = ..., revoke_invite: _Optional[_Union[RevokeInvite, _Mapping]] = ...) -> None: ...

class AdminReply(_message.Message):
    __slots__ = ("status", "peers", "rounds", "events", "invitation", "done", "admin_error", "run_settings", "leaderboard", "granted", "invites")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ERROR_FIELD_NUMBER: _ClassVar[int]
    RUN_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LEADERBOARD_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    INVITES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    peers: Peers
    rounds: Rounds
    events: Events
    invitation: Invitation
    done: Done
    admin_error: AdminError
    run_settings: RunSettings
    leaderboard: Leaderboard
    granted: Granted
    invites: Invites
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., peers: _Optional[_Union[Peers, _Mapping]] = ..., rounds: _Optional[_Union[Rounds, _Mapping]] = ..., events: _Optional[_Union[Events, _Mapping]] = ..., invitation: _Optional[_Union[Invitation, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., admin_error: _Optional[_Union[AdminError, _Mapping]] = ..., run_settings: _Optional[_Union[RunSettings, _Mapping]] = ..., leaderboard: _Optional[_Union[Leaderboard, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., invites: _Optional[_Union[Invites, _Mapping]] = ...) -> None: ...
