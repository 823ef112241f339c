"""Refusal: a request that a check turned down, with the code and remark to answer.

A processor raises it where it checks, and the code that serves the request answers with it. Nothing
is logged: the requester is told all there is to know.
"""

from __future__ import annotations

from oberth.remoting.command import RemotingCommand, create_response


class Refusal(Exception):
    """A check that failed.

    Attributes:
        code: the response code.
        remark: what the requester reads.
        ext_fields: header fields of the answer; None answers without any.
    """

    def __init__(self, code: int, remark: str, ext_fields: dict[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark
        self.ext_fields = ext_fields

    def answer(
        self, request: RemotingCommand, ext_fields: dict[str, str] | None = None
    ) -> RemotingCommand:
        """The response; ``ext_fields`` are its header fields where the refusal has none."""
        fields = ext_fields if self.ext_fields is None else self.ext_fields
        return create_response(request, self.code, self.remark, ext_fields=fields)
