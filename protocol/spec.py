"""The run spec: everything that changes the maths of a run, and how patient it is. One TOML file, the same for all.

Rule: a spec that was built is valid. Unknown keys are refused by the name of the nearest known one, contradicting settings by both
names. What must not change the maths (device, threads, micro-batch) belongs to the peer and is not here. `to_json` is canonical:
equal specs are equal bytes. `example_toml` writes the documentation from the fields themselves, so that it cannot go stale.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import ConfigDict, Field, ValidationError, model_validator

from shoal.protocol.errors import SpecError
from shoal.protocol.names import is_run_name, why_not_relative
from shoal.protocol.units import BITS_PER_BYTE, BITS_PER_TOKEN

SPEC_LIMIT_BYTES = 4 << 20
"""A spec as JSON; most of a large one is its list of files."""

Count = Annotated[int, Field(ge=1, le=1 << 31)]
Tokens = Annotated[int, Field(ge=1, le=1 << 62)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=30 * 86400)]


class Section(pydantic.BaseModel):
    """One table of the file: frozen, strict, and each field's docstring is its documentation."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, validate_by_name=True
    )


class Run(Section):
    """Which run this is and when it is over."""

    name: str = "shoal"
    """Name of the run: 1 to 40 lower-case letters, digits and hyphens."""
    min_peers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Peers without which no round opens; below it the run pauses by itself."""
    total_tokens: Tokens
    """Tokens that all peers together train on before the run ends."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    """Seed of the initial parameters and of the order of the samples."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not is_run_name(self.name):
            raise ValueError(f"run.name {self.name!r:.80}: 1 to 40 lower-case letters, digits and inner hyphens are allowed")
        return self


class Model(Section):
    """What is trained."""

    kind: Literal["decoder", "factory"] = "decoder"
    """"decoder": the built-in Llama-style language model. "factory": what `factory` makes, in a package that each peer allowed."""
    factory: Annotated[str, Field(max_length=200)] = ""
    """With kind = "factory": where the model is made, as "package.module:attribute"."""
    width: Annotated[int, Field(ge=2, le=1 << 16)] = 64
    """Values per position (the embedding's size)."""
    layers: Annotated[int, Field(ge=1, le=1 << 10)] = 3
    """Decoder blocks."""
    heads: Annotated[int, Field(ge=1, le=1 << 10)] = 4
    """Attention heads; each has width / heads values, an even number."""
    kv_heads: Annotated[int, Field(ge=1, le=1 << 10)] = 4
    """Heads of keys and values (grouped-query attention); divides `heads`."""
    ffn: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    """Width of the feed-forward layer, in values; 0: 8/3 of `width`, rounded up to a multiple of 32."""
    init_std: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Standard deviation of the initial weights; 0: 0.6 / sqrt(width)."""
    vocab: Annotated[int, Field(ge=2, le=1 << 24)] = 256
    """Distinct tokens; bytes need 256."""

    @property
    def ffn_width(self) -> int:
        """`ffn` with its default resolved."""
        return self.ffn or -(-8 * self.width // (3 * 32)) * 32

    @property
    def initial_std(self) -> float:
        """`init_std` with its default resolved."""
        return self.init_std or 0.6 / math.sqrt(self.width)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "factory" and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", self.factory, re.ASCII):
            raise ValueError('model.kind "factory" needs model.factory, written "package.module:attribute"')
        if self.kind != "factory" and self.factory:
            raise ValueError(f'model.factory is set but model.kind is "{self.kind}"; set model.kind = "factory"')
        if self.kind == "factory":
            return self
        if self.width % (2 * self.heads):
            raise ValueError(f"model.width {self.width} is not an even multiple of model.heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"model.heads {self.heads} is not a multiple of model.kv_heads {self.kv_heads}")
        return self


def is_held_out(name: str, fraction: float) -> bool:
    """Whether the file of this name is kept for evaluation: the first 8 bytes of its name's SHA-256, as a number in [0, 1), lie
    below `fraction`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64 < fraction


class DataFile(Section):
    """One file of a run: of its data, or its tokenizer."""

    path: str
    """Path below the data directory, or the http:// or https:// address that peers fetch the file from unless it is below their
    data directory, under the address's path."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the content, 64 lower-case hexadecimal digits."""
    size: Annotated[int, Field(ge=0, le=1 << 50)]
    """Size in bytes."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.url:
            host, slash, _ = self.path.partition("://")[2].partition("/")
            if not slash or not re.fullmatch(r"[A-Za-z0-9.\-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?", host):
                raise ValueError(f"data.files path {self.path!r:.200} is not a usable address")
        if why := why_not_relative(self.name):
            raise ValueError(f"data.files path {self.path!r:.200} cannot be used: {why}; name files relative to the data directory")
        return self

    @property
    def url(self) -> str:
        """Where the file can be fetched, or ""."""
        return self.path if self.path.startswith(("https://", "http://")) else ""

    @property
    def name(self) -> str:
        """Its path below a data directory."""
        return self.path.partition("://")[2].partition("/")[2] if self.url else self.path


class Data(Section):
    """What it is trained on."""

    source: Literal["stdlib", "files"] = "stdlib"
    """"stdlib": the source text of Python's standard library (for demos). "files": the files listed in `files`."""
    files: Annotated[tuple[DataFile, ...], Field(max_length=20_000)] = ()
    """With source = "files": a list of { path, sha256, size }."""
    format: Literal["text", "uint16", "uint32"] = "text"
    """What the files hold: "text", or tokens as little-endian numbers of 16 or 32 bits (.bin files). Figures are bits per byte of
    text; of token files, per token."""
    tokenizer: Annotated[tuple[DataFile, ...], Field(max_length=1)] = ()
    """A Hugging Face tokenizer.json, as a list of one { path, sha256, size }; it becomes part of the finished model. With text, it
    makes the tokens; without one, a token is a byte."""
    epochs: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    """0: the data are begun again as often as run.total_tokens needs. Otherwise the run ends with the round that completes this
    many passes over them, if run.total_tokens does not end it earlier."""
    sequence_length: Annotated[int, Field(ge=1, le=1 << 20)] = 128
    """Tokens per sample that are predicted."""
    heldout_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the text that is kept for evaluation: the files whose names' hashes fall into it. Where that leaves one half empty
    (few files), the last bytes of all instead."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.source == "files" and not self.files:
            raise ValueError('data.source "files" needs at least one entry in data.files')
        if self.source != "files" and self.files:
            raise ValueError(f'data.files is set but data.source is "{self.source}"; set data.source = "files"')
        for key in ("format", "tokenizer"):
            if self.source != "files" and getattr(self, key) != Data.model_fields[key].default:
                raise ValueError(f'data.{key} is set but data.source is "{self.source}"; set data.source = "files"')
        if len({file.path for file in self.files}) < len(self.files):
            raise ValueError("data.files names the same path twice")
        if odd := next((file for file in self.files if file.size % self.token_bytes), None):
            raise ValueError(f'data.files has {odd.path} of {odd.size} bytes, which data.format "{self.format}" does not divide')
        if self.epochs and self.training_samples is None:
            known = 'data.source "files" and no data.tokenizer, or token files'
            raise ValueError(f"data.epochs {self.epochs} needs {known}: the length of the data must be known beforehand")
        return self

    @property
    def unit(self) -> str:
        """What losses are given in."""
        return BITS_PER_BYTE if self.format == "text" else BITS_PER_TOKEN

    @property
    def token_bytes(self) -> int:
        """Bytes of a stored token."""
        return {"text": 1, "uint16": 2, "uint32": 4}[self.format]

    @property
    def training_samples(self) -> int | None:
        """Samples of one epoch, where the run spec alone says how many: as `peer.data.corpus` cuts the files."""
        if self.source != "files" or (self.format == "text" and self.tokenizer):
            return None
        total = sum(file.size for file in self.files) // self.token_bytes
        held = sum(file.size for file in self.files if is_held_out(file.path, self.heldout_fraction)) // self.token_bytes
        kept = total - held
        if self.heldout_fraction > 0 and not (kept > self.sequence_length and held > self.sequence_length):
            kept = round(total * (1 - self.heldout_fraction))
        return max(0, (kept - 1) // self.sequence_length)


class Train(Section):
    """The inner steps that each peer does alone."""

    batch: Annotated[int, Field(ge=1, le=1 << 20)] = 4
    """Samples per inner step."""
    steps: Annotated[int, Field(ge=1, le=1 << 20)] = 30
    """Inner steps per round (H)."""
    inner: Literal["adamw", "sgd"] = "adamw"
    """Inner optimizer."""
    lr: Annotated[float, Field(gt=0, le=1000)] = 4e-3
    """Peak learning rate of the inner optimizer."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean of gradients per step (sgd: its momentum)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the mean of squared gradients per step."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to AdamW's denominator."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Decoupled weight decay, on matrices only, times the learning rate per step."""
    clip_norm: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of a local gradient; 0: no clipping."""
    warmup_fraction: Fraction = 0.05
    """Share of run.total_tokens over which the learning rate rises from 0."""
    final_lr_fraction: Fraction = 0.1
    """Learning rate at the end, as a share of `lr` (rsqrt: the least there is)."""
    schedule: Literal["cosine", "linear", "wsd", "rsqrt", "constant"] = "cosine"
    """Course of the learning rate after the warm-up: "cosine" and "linear" fall until run.total_tokens; "wsd" stays at `lr` and
    falls over the last `decay_fraction`; "rsqrt" is lr * sqrt(warm-up / progress) and knows no end; "constant" stays at `lr`."""
    decay_fraction: Fraction = 0.2
    """With schedule = "wsd": share of run.total_tokens, the last ones, over which the learning rate falls."""
    decay_shape: Literal["linear", "sqrt"] = "linear"
    """With schedule = "wsd": how it falls; "sqrt": faster at first, by 1 - sqrt(share of the decay that is done)."""
    rewarm_steps: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    """Steps over which an optimizer that starts without moments (a joiner's) approaches the full rate; 0: half of `steps`."""

    @property
    def rewarm(self) -> int:
        """`rewarm_steps` with its default resolved, at least 1."""
        return self.rewarm_steps or max(1, self.steps // 2)

    @model_validator(mode="after")
    def _check(self) -> Self:
        defaults = {name: field.default for name, field in Train.model_fields.items()}
        if self.schedule == "constant" and self.final_lr_fraction not in (1.0, defaults["final_lr_fraction"]):
            raise ValueError('train.final_lr_fraction has no meaning with train.schedule "constant"; remove one of them')
        for name in ("decay_fraction", "decay_shape"):
            if self.schedule != "wsd" and getattr(self, name) != defaults[name]:
                raise ValueError(f'train.{name} has no meaning with train.schedule "{self.schedule}"; remove one of them')
        if self.schedule == "wsd" and self.warmup_fraction + self.decay_fraction > 1:
            raise ValueError(
                f"train.warmup_fraction {self.warmup_fraction:g} and train.decay_fraction {self.decay_fraction:g} overlap: "
                "together they may be 1 at most"
            )
        if self.schedule == "wsd" and not self.decay_fraction:
            raise ValueError('train.decay_fraction 0 leaves train.schedule "wsd" without a decay; set train.schedule = "constant"')
        if self.schedule == "rsqrt" and not self.warmup_fraction:
            raise ValueError('train.schedule "rsqrt" needs a train.warmup_fraction above 0, whose length is its scale')
        return self


class Round(Section):
    """When a member stops training in a round, and for whom the round waits."""

    stop: Literal["steps", "time", "samples"] = "steps"
    """"steps": each member trains train.steps inner steps. "time": as many as fit into `seconds`. "samples": until the members
    together have `samples`."""
    seconds: Annotated[float, Field(ge=0, le=30 * 86400)] = 0.0
    """With stop = "time": seconds that each member trains, by its own clock; how many steps to expect is measured, train.steps is
    the first guess."""
    samples: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    """With stop = "samples": samples that all members together train before gathering closes; what is in hand then counts too."""
    gather: Literal["all", "quorum"] = "all"
    """"all": every member is waited for, each as long as its own earlier rounds say it may need. "quorum": only until enough are
    ready, and for the others a little longer. Who is late is asked for what it has; what comes too late counts in a later round."""
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.5
    """With gather = "quorum": share of the members that must be ready at least. More are waited for as long as that adds more
    work per second than it costs, by the speeds measured so far."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key, value, stop in (("seconds", self.seconds, "time"), ("samples", self.samples, "samples")):
            if self.stop == stop and not value:
                raise ValueError(f'round.stop "{stop}" needs round.{key}')
            if self.stop != stop and value:
                raise ValueError(f'round.{key} is set but round.stop is "{self.stop}"; set round.stop = "{stop}"')
        if self.gather == "all" and self.quorum != Round.model_fields["quorum"].default:
            raise ValueError('round.quorum is set but round.gather is "all"; set round.gather = "quorum"')
        return self


class Outer(Section):
    """The step that moves the shared parameters: Nesterov momentum on the averaged pseudo-gradient."""

    lr: Annotated[float, Field(gt=0, le=100)] = 0.7
    """Outer learning rate."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Outer momentum per commit; 0.6 suits runs below about 200 rounds."""


CodecName = Literal["raw", "int8", "bf16", "fp16"]


class Codec(Section):
    """How updates shrink on their way."""

    send: CodecName = "int8"
    """Codec of what a contributor sends to a reducer: "raw" (fp32), "int8", "bf16" or "fp16"."""
    return_: Annotated[CodecName, Field(alias="return")] = "int8"
    """Codec of what a reducer returns; these bytes are the log entry."""
    block: Annotated[int, Field(ge=8, le=1 << 16)] = 1024
    """Values that share one scale."""
    error_feedback: bool = False
    """Whether a contributor adds what the codec left out of its contributions to its next one. It is for codecs much coarser than
    int8; none of today's needs it. Costs each peer 4 bytes of memory per parameter."""
    zstd: Literal["auto", "off"] = "auto"
    """"auto": peers pack parts (zstd, level 1) on their way over links where that is faster, as each measures for itself. "off":
    packed parts are refused. What a part means, its digest and the log are the same either way."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.error_feedback and self.send == "raw":
            raise ValueError(
                'codec.error_feedback has no meaning with codec.send "raw", which leaves nothing out; remove one of them'
            )
        return self


class Evaluation(Section):
    """How often the shared state is measured on held-out text."""

    every: Annotated[int, Field(ge=0, le=1 << 31)] = 10
    """Commits between two evaluations; 0: only at the end."""
    samples: Count = 256
    """Held-out samples per evaluation."""


class State(Section):
    """What is kept and compared of the shared state."""

    fingerprint_every: Count = 1
    """Commits between two comparisons of all members' fingerprints."""
    keep_entries: Annotated[int, Field(ge=1, le=1024)] = 8
    """Log entries that each peer keeps, so that others can catch up without fetching everything. Each takes two open files."""


class Timing(Section):
    """How patient the run is."""

    heartbeat_s: Seconds = 2.0
    """Seconds between two heartbeats of a peer."""
    lost_after_s: Seconds = 10.0
    """Seconds of silence after which a peer is lost."""
    grace_s: Annotated[float, Field(ge=0, le=86400)] = 2.0
    """Seconds within which a peer whose stream broke may come back as the same member."""
    gather_s: Seconds = 600.0
    """Seconds after which gathering closes without members that are not ready, if min_peers are. This and the next three are
    limits: how long the run really waits is computed from what earlier rounds took (`shoal admin rounds`)."""
    reduce_s: Seconds = 600.0
    """Seconds after its plan at which a round without a commit is abandoned, at most."""
    part_s: Seconds = 300.0
    """Seconds that a reducer waits for a contribution, at most."""
    delivery_s: Seconds = 60.0
    """Seconds that a commit waits for members that lack parts which enough others hold, at most."""
    join_wait_s: Annotated[float, Field(ge=0, le=86400)] = 0.5
    """Seconds to wait for more peers, once min_peers are there, before a round opens."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heartbeat_s >= self.lost_after_s:
            raise ValueError(
                f"timing.heartbeat_s {self.heartbeat_s:g} is not below timing.lost_after_s {self.lost_after_s:g}: "
                "every peer would be lost between two heartbeats"
            )
        if self.grace_s > self.lost_after_s:
            raise ValueError(
                f"timing.grace_s {self.grace_s:g} exceeds timing.lost_after_s {self.lost_after_s:g}: "
                "a broken stream would be forgiven longer than silence"
            )
        if self.part_s > self.reduce_s:
            raise ValueError(
                f"timing.part_s {self.part_s:g} exceeds timing.reduce_s {self.reduce_s:g}: "
                "the round would be abandoned before a reducer stops waiting"
            )
        return self


class RunSpec(Section):
    """A whole run. `RunSpec.load(path)` reads a file, `RunSpec.of(run={...}, ...)` builds one from plain tables."""

    run: Run
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    round: Round = Round()
    outer: Outer = Outer()
    codec: Codec = Codec()
    evaluation: Evaluation = Evaluation()
    state: State = State()
    timing: Timing = Timing()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.round.seconds >= self.timing.gather_s:
            raise ValueError(
                f"round.seconds {self.round.seconds:g} is not below timing.gather_s {self.timing.gather_s:g}: "
                "gathering would close before anybody is ready"
            )
        reads_bytes = self.data.format == "text" and not self.data.tokenizer
        if self.model.kind == "decoder" and reads_bytes and self.model.vocab < 256:
            reason = f'model.vocab {self.model.vocab} is too small for model.kind "decoder", which reads bytes'
            raise ValueError(f"{reason}: 256 at least, unless data.format or data.tokenizer says what tokens are")
        if self.data.format == "uint16" and self.model.vocab > 1 << 16:
            raise ValueError(f'model.vocab {self.model.vocab} exceeds what data.format "uint16" can name: 65536')
        return self

    @property
    def end_tokens(self) -> int:
        """Committed tokens at which the run ends: run.total_tokens, or the last epoch."""
        samples = self.data.training_samples if self.data.epochs else None
        last = self.run.total_tokens if samples is None else self.data.epochs * samples * self.data.sequence_length
        return max(1, min(self.run.total_tokens, last))

    @property
    def samples_per_round(self) -> int:
        """A member's quota: samples that it trains on in one round."""
        return self.train.batch * self.train.steps

    @property
    def tokens_per_round(self) -> int:
        """Tokens that one member trains on in one round."""
        return self.samples_per_round * self.data.sequence_length

    @classmethod
    def of(cls, **tables: Any) -> RunSpec:
        """The spec that these tables describe; what is left out has its default. Raises SpecError."""
        return _validated(tables, "run spec")

    @classmethod
    def load(cls, path: Path | str) -> RunSpec:
        """The spec in a TOML file. Raises SpecError that starts with the file's name."""
        try:
            return cls.parse(Path(path).read_bytes().decode(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{path} cannot be read: {error}") from error

    @classmethod
    def parse(cls, text: str, name: str = "run spec") -> RunSpec:
        """The spec in TOML text; `name` is what errors call it. Raises SpecError."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SpecError(f"{name} is not valid TOML: {error}") from error
        return _validated(tables, name)

    def to_json(self) -> bytes:
        """Canonical JSON: all fields, sorted, no spaces. Equal specs give equal bytes."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> RunSpec:
        """The spec that `to_json` wrote, checked as if a stranger had. Raises SpecError."""
        if len(data) > SPEC_LIMIT_BYTES:
            raise SpecError(f"a run spec of {len(data)} bytes exceeds the limit of {SPEC_LIMIT_BYTES}")
        try:
            tables = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"the run spec is not valid JSON: {error}") from error
        if not isinstance(tables, dict):
            raise SpecError("the run spec is not a JSON object")
        return _validated(tables, "run spec")


def example_toml(spec: RunSpec | None = None) -> str:
    """`spec` (default: every default, ten million tokens) as TOML in which each key is documented with unit and default."""
    spec = spec or RunSpec.of(run={"total_tokens": 10_000_000})
    lines = ["# A shoal run spec. Every key is shown; a key that is left out has the default that its comment names."]
    for section in RunSpec.model_fields:
        table: Section = getattr(spec, section)
        lines += ["", f"# {_one_line(type(table).__doc__)}", f"[{section}]"]
        for name, field in type(table).model_fields.items():
            default = "required" if field.is_required() else f"default {_toml(field.default)}"
            lines += [f"# {_one_line(field.description)} ({default})", f"{field.alias or name} = {_toml(getattr(table, name))}"]
    return "\n".join(lines) + "\n"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case DataFile():
            return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.model_dump().items()) + " }"
        case tuple() if not value:
            return "[]"
        case tuple():
            return "[\n" + "".join(f"    {_toml(item)},\n" for item in value) + "]"
        case _:
            raise SpecError(f"{type(value).__name__} has no form in TOML")


def _validated(tables: dict[str, Any], name: str) -> RunSpec:
    """Through JSON, so that TOML's lists become tuples and file, wire and code are held to one strictness."""
    try:
        text = json.dumps(tables, default=_unsupported)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"{name}: {error}") from error
    try:
        return RunSpec.model_validate_json(text)
    except ValidationError as error:
        raise _explained(error, name) from None


def _unsupported(value: Any) -> Any:
    if isinstance(value, Section):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"a value of type {type(value).__name__} has no place in a run spec")


def _explained(error: ValidationError, name: str) -> SpecError:
    details = error.errors(include_url=False, include_context=True)
    # A misspelt key often makes a required one missing as well: the misspelling explains more.
    first = min(details, key=lambda detail: detail["type"] != "extra_forbidden")
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    where = ".".join(str(step) for step in first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return SpecError(f'{name}: unknown key "{where}"{more}', _suggestion(tuple(str(step) for step in first["loc"])))
        case "missing":
            return SpecError(f'{name}: "{where}" is missing{more}', "add it")
        case "value_error":
            return SpecError(f"{name}: {first['msg'].removeprefix('Value error, ')}{more}")
        case _:
            message = first["msg"][:1].lower() + first["msg"][1:]
            return SpecError(f'{name}: "{where}" is {first["input"]!r:.80}, but {message}{more}')


def _suggestion(location: tuple[str, ...]) -> str:
    """The known keys nearest to an unknown one: in its own table first, then wherever the same key exists."""
    sections = {name: _keys(field.annotation) for name, field in RunSpec.model_fields.items()}
    section, key = location[0], location[-1]
    if len(location) == 1:
        nearest = difflib.get_close_matches(section, sections, 1, 0.5)
        homes = [f"{home}.{section}" for home, keys in sections.items() if section in keys]
        return f"did you mean {' or '.join(homes or nearest)}?" if homes or nearest else f"known tables: {', '.join(sections)}"
    keys = sections.get(section, [])
    if len(location) > 2:
        keys = _keys(DataFile)
    if nearest := difflib.get_close_matches(key, keys, 1, 0.6):
        return f"did you mean {'.'.join((*location[:-1], nearest[0]))}?"
    if homes := [f"{home}.{key}" for home, known in sections.items() if key in known]:
        return f"did you mean {' or '.join(homes)}?"
    if nearest := difflib.get_close_matches(key, keys, 1, 0.0):
        return f"the nearest is {'.'.join((*location[:-1], nearest[0]))}; known keys: {', '.join(keys)}"
    return f"known keys: {', '.join(keys)}"


def _keys(table: Any) -> list[str]:
    return [field.alias or name for name, field in table.model_fields.items()]
