"""Every exception the project raises on purpose.

    MurmurateError
    ├── ConfigError            what the user wrote cannot be run
    │   └── PeerExists         the name is taken by a live peer
    ├── SchemaMismatch         another model, run or version
    ├── TransportError
    │   ├── PeerUnavailable    nobody answers there
    │   └── PeerTimeout        it answered before, not now
    ├── ProtocolError
    │   ├── LocalProtocolError     this program's mistake
    │   └── RemoteProtocolError    the other side's: names the field, nothing was changed
    │       └── ChecksumMismatch   what arrived is not what its head says
    ├── CheckpointError        a file that cannot be trusted
    └── PromiseBroken          one of the promises of docs/promises.md does not hold

What is normal in a swarm (stale, duplicate, peer gone) is a value with a reason, not an exception.
"""

from __future__ import annotations


class MurmurateError(Exception):
    """Base of all."""


class ConfigError(MurmurateError):
    """What the user wrote cannot be run; the message names the key and what is accepted."""


class PeerExists(ConfigError):
    """Another live peer of the run has that name."""


class SchemaMismatch(MurmurateError):
    """The other side trains another model, run or version; the message says what differs."""


class TransportError(MurmurateError):
    """A message could not be carried."""


class PeerUnavailable(TransportError):
    """Nobody answers at that address."""


class PeerTimeout(TransportError):
    """The peer was there before, but did not answer in time."""


class ProtocolError(MurmurateError):
    """A rule of the peer protocol was not kept."""


class LocalProtocolError(ProtocolError):
    """This program broke a rule: a bug here, never the network's fault."""


class RemoteProtocolError(ProtocolError):
    """The other side sent what no honest peer sends. Local state is untouched."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)  # the arguments as they are: it must survive a pickle
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


class ChecksumMismatch(RemoteProtocolError):
    """The bytes are not those that the head speaks of: damaged on the way, or a lie."""


class CheckpointError(MurmurateError):
    """A checkpoint that is torn, foreign or from the future."""


class PromiseBroken(MurmurateError):
    """A promise the system makes does not hold: the run must stop and say so."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(promise, detail)
        self.promise = promise
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}"
