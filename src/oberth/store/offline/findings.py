"""What is wrong with a store: each finding names file, position, found and expected."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

FINDINGS_MAX: Final = 10_000
"""More findings than this are counted by kind, not listed."""


class Severity(enum.StrEnum):
    """Whether a finding costs something."""

    DAMAGE = "damage"
    """Data or an index of it is wrong or missing; verify ends with exit code 1."""
    NOTE = "note"
    """Worth knowing, and what an ordinary start or the next write puts right."""


class FindingKind(enum.StrEnum):
    """What kind of thing is wrong. The values are part of the JSON output."""

    FOREIGN_FILE = "foreign-file"
    FILE_SIZE = "file-size"
    FILE_GAP = "file-gap"
    FILE_UNREADABLE = "file-unreadable"

    RECORD_CRC = "record-crc"
    RECORD_PROPERTY_CRC = "record-property-crc"
    RECORD_DAMAGED = "record-damaged"
    RECORD_QUEUE_OFFSET = "record-queue-offset"
    RECORD_TOPIC = "record-topic"
    BLANK_SIZE = "blank-size"
    LOG_TAIL = "log-tail"

    QUEUE_MISSING = "queue-missing"
    UNIT_MISSING = "unit-missing"
    UNIT_WRONG = "unit-wrong"
    UNIT_DANGLING = "unit-dangling"
    QUEUE_TAIL = "queue-tail"
    EXT_UNIT = "ext-unit"

    INDEX_MISSING = "index-missing"
    INDEX_HEADER = "index-header"
    INDEX_SLOT = "index-slot"
    INDEX_ENTRY = "index-entry"
    INDEX_ENTRY_MISSING = "index-entry-missing"
    INDEX_TAIL = "index-tail"

    CHECKPOINT = "checkpoint"
    CONFIG_FILE = "config-file"
    TOPIC_UNKNOWN = "topic-unknown"
    CONSUMER_OFFSET = "consumer-offset"
    LIMIT = "more-findings"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: what kind of thing.
        file: path relative to the store root.
        position: byte position inside the file, 0 where the file as a whole is meant.
        found: what is there.
        expected: what should be there.
        severity: whether it costs something.
        commit_log_offset: the record it is about, if it is about one.
        topic: of that record or queue.
        queue_id: of that record or queue.
        queue_offset: of that record or unit.
        keys: of that record, as far as they can be read.
        length: bytes concerned, where it is a range.
    """

    kind: FindingKind
    file: str
    position: int
    found: str
    expected: str
    severity: Severity = Severity.DAMAGE
    commit_log_offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    keys: str | None = None
    length: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Its fields by the names that the JSON output has; what is None is left out."""
        names = {
            "commit_log_offset": "commitLogOffset",
            "queue_id": "queueId",
            "queue_offset": "queueOffset",
        }
        return {
            names.get(name, name): str(value) if isinstance(value, enum.Enum) else value
            for name, value in asdict(self).items()
            if value is not None
        }

    def __str__(self) -> str:
        where = f"{self.file} at {self.position}"
        about = ""
        if self.topic is not None:
            about = f" [{self.topic}"
            if self.queue_id is not None:
                about += f"/{self.queue_id}"
            if self.queue_offset is not None:
                about += f"/{self.queue_offset}"
            about += f", keys {self.keys}]" if self.keys else "]"
        return f"{self.kind}: {where}: found {self.found}, expected {self.expected}{about}"


@dataclass(slots=True)
class VerifyReport:
    """What a check found.

    Attributes:
        findings: damage and notes, in the order in which they were met.
        records: valid records read.
        units: units compared.
        index_entries: index entries compared.
        bytes_read: of the CommitLog.
        log_start: CommitLog offset of the first byte.
        log_end: CommitLog offset after the last record.
        dropped: findings by kind that were not listed, because there were too many.
    """

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    units: int = 0
    index_entries: int = 0
    bytes_read: int = 0
    log_start: int = 0
    log_end: int = 0
    dropped: Counter[FindingKind] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Lists a finding, or counts it when the list is full."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.dropped[finding.kind] += 1

    @property
    def damage(self) -> list[Finding]:
        """Findings that cost something."""
        return [each for each in self.findings if each.severity is Severity.DAMAGE]

    @property
    def notes(self) -> list[Finding]:
        """Findings that do not."""
        return [each for each in self.findings if each.severity is Severity.NOTE]

    @property
    def clean(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage and not self.dropped

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "clean": self.clean,
            "records": self.records,
            "units": self.units,
            "indexEntries": self.index_entries,
            "minOffset": self.log_start,
            "maxOffset": self.log_end,
            "findings": [each.to_json() for each in self.damage],
            "notes": [each.to_json() for each in self.notes],
            "notListed": {str(kind): count for kind, count in self.dropped.items()},
        }
