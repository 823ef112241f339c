"""Every exception that Oberth raises, as one tree.

    OberthError
    ├── FormatError                 bytes that are not what they claim to be
    │   ├── RecordError             a CommitLog record that does not parse or fails its CRC
    │   └── ConfigFormatError       a config/*.json that cannot be read
    ├── StoreError
    │   ├── StoreCorruptError       files of a store that contradict each other or their names
    │   ├── StoreClosedError        used before start or after shutdown
    │   ├── StoreFullError          no space, or the disk-full flag is set
    │   ├── StoreLockedError        another process holds the store's lock
    │   ├── StoreReadOnlyError      a write to a store opened for reading
    │   ├── NotFoundError           an offset, key or queue that is not in the store
    │   └── DataLossError           a reader asked for what is gone or damaged
    ├── ProtocolError
    │   ├── LocalProtocolError      we tried to send what the protocol does not allow
    │   └── RemoteProtocolError     the peer sent what the protocol does not allow
    ├── RemotingError               connect, send, time-out or too many requests
    │   ├── RemotingConnectError
    │   ├── RemotingSendRequestError
    │   ├── RemotingTimeoutError
    │   └── RemotingTooMuchRequestError
    ├── IllegalNameError            a topic or group name outside the allowed characters or length
    ├── OptionError                 an unknown option, or a value out of range
    │   └── UnknownOptionError      a key of a configuration that nothing here has
    ├── SparkUnavailableError       no Java or no pyspark, or they are too old
    ├── PeerUnavailableError        another RocketMQ that a test wants cannot be had here
    └── ClientError
        ├── MQClientError           the client's own state or arguments
        ├── MQBrokerError           a broker answered with an error code
        └── RequestTimeoutError     request-reply: no reply in time

Messages carry the numbers: file, position, found, allowed. What is expected to happen in ordinary
work (a full queue, an illegal message) is a status value, not an exception.
"""

from __future__ import annotations


class OberthError(Exception):
    """Root of the tree."""


class FormatError(OberthError, ValueError):
    """Bytes are not what they claim to be."""


class RecordError(FormatError):
    """A CommitLog record does not parse, or its checksum differs."""


class ConfigFormatError(FormatError):
    """A configuration file cannot be read in any dialect that Java writes or reads."""


class StoreError(OberthError):
    """Something is wrong with a store."""


class StoreCorruptError(StoreError):
    """Files of a store contradict each other, their names or their sizes."""


class StoreClosedError(StoreError):
    """The store is not started, or shut down."""


class StoreFullError(StoreError):
    """No space is left, or the disk-full flag is set."""


class StoreLockedError(StoreError):
    """Another process holds the store's lock."""


class StoreReadOnlyError(StoreError):
    """A write to a store that was opened for reading."""


class NotFoundError(StoreError, LookupError):
    """An offset, key, topic or queue is not in the store."""


class DataLossError(StoreError):
    """What a reader asked for is gone or damaged; the message names the exact ranges."""


class ProtocolError(OberthError):
    """Somebody broke the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """We tried to send what the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow."""


class RemotingError(OberthError):
    """A request could not be delivered, or was not answered."""


class RemotingConnectError(RemotingError):
    """No connection to the address."""


class RemotingSendRequestError(RemotingError):
    """The connection broke before the request was written."""


class RemotingTimeoutError(RemotingError, TimeoutError):
    """No answer within the caller's time-out."""


class RemotingTooMuchRequestError(RemotingError):
    """More requests in flight than the limit allows."""


class IllegalNameError(OberthError, ValueError):
    """A topic or group name has characters or a length that is not allowed."""


class OptionError(OberthError, ValueError):
    """An unknown option, or a value out of its range."""


class UnknownOptionError(OptionError):
    """A key of a configuration that neither Apache nor Oberth has."""


class SparkUnavailableError(OberthError):
    """Spark cannot be started here: no Java, no pyspark, or one that is too old."""


class PeerUnavailableError(OberthError):
    """A RocketMQ that a test or benchmark compares with cannot be had on this machine."""


class ClientError(OberthError):
    """A client operation failed."""


class MQClientError(ClientError):
    """The client's own state or arguments do not allow the operation.

    Attributes:
        response_code: RocketMQ's client-side code, or -1.
    """

    def __init__(self, message: str, response_code: int = -1) -> None:
        super().__init__(message)
        self.response_code = response_code


class MQBrokerError(ClientError):
    """A broker or name server answered with an error code.

    Attributes:
        response_code: the code of the answer.
        broker_addr: ``host:port`` that answered, or "".
    """

    def __init__(self, response_code: int, message: str, broker_addr: str = "") -> None:
        at = f" from {broker_addr}" if broker_addr else ""
        super().__init__(f"code {response_code}{at}: {message}")
        self.response_code = response_code
        self.broker_addr = broker_addr


class RequestTimeoutError(ClientError, TimeoutError):
    """Request-reply: no reply arrived in time."""
