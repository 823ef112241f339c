"""What gRPC servers have beside their own services: health (``grpc.health.v1``) and reflection.

Health answers load balancers and container platforms: SERVING while the broker takes messages.
Reflection tells tools such as grpcurl which calls there are and what their messages look like.
Neither asks who calls: what they show is the same on every broker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from oberth.proxy import messages as m
from oberth.proxy.call import Call, CallError, GrpcStatus, Handler, parse

HEALTH: Final = "grpc.health.v1"
SERVICES: Final = [f"{file.package}.{service.name}" for file in m.FILES for service in file.service]
QUESTIONS_MAX: Final = 100
"""Questions that one reflection call may ask."""


def health_handlers(not_ready: Callable[[], str | None]) -> dict[str, Handler]:
    """What serves health.

    Args:
        not_ready: why no messages are taken, or None.
    """
    request_class = m.message_class("HealthCheckRequest", HEALTH)
    response_class = m.message_class("HealthCheckResponse", HEALTH)
    status = response_class.ServingStatus

    async def check(call: Call) -> None:
        request = parse(request_class, await call.only_message())
        if request.service and request.service not in SERVICES:
            raise CallError(GrpcStatus.NOT_FOUND, f"unknown service {request.service[:200]}")
        serving = "SERVING" if not_ready() is None else "NOT_SERVING"
        call.send(response_class(status=status.Value(serving)).SerializeToString())

    return {f"/{HEALTH}.Health/Check": check}


def reflection_handlers() -> dict[str, Handler]:
    """What serves reflection, under both of its names."""
    return {
        f"/{package}.ServerReflection/ServerReflectionInfo": _reflection(package)
        for package in m.REFLECTION_PACKAGES
    }


def _reflection(package: str) -> Handler:
    request_class = m.message_class("ServerReflectionRequest", package)
    response_class = m.message_class("ServerReflectionResponse", package)

    async def answer_all(call: Call) -> None:
        count = 0
        async for raw in call.messages():
            count += 1
            if count > QUESTIONS_MAX:
                raise CallError(
                    GrpcStatus.RESOURCE_EXHAUSTED, f"more than {QUESTIONS_MAX} questions"
                )
            request = parse(request_class, raw)
            response = response_class(valid_host=request.host, original_request=request)
            _answer(request, response)
            call.send(response.SerializeToString())

    return answer_all


def _answer(request: Any, response: Any) -> None:
    kind = request.WhichOneof("message_request")
    try:
        if kind == "list_services":
            for name in SERVICES:
                response.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            found = m.POOL.FindFileByName(request.file_by_filename)
            _add_files(response, found)
        elif kind == "file_containing_symbol":
            found = m.POOL.FindFileContainingSymbol(request.file_containing_symbol)
            _add_files(response, found)
        else:
            response.error_response.error_code = int(GrpcStatus.UNIMPLEMENTED)
            response.error_response.error_message = "there are no extensions"
    except KeyError as error:
        response.error_response.error_code = int(GrpcStatus.NOT_FOUND)
        response.error_response.error_message = str(error)[:200]


def _add_files(response: Any, file: Any) -> None:
    response.file_descriptor_response.file_descriptor_proto.extend(_with_needed(file.name))


@lru_cache(None)
def _with_needed(name: str) -> tuple[bytes, ...]:
    """A file behind those that it needs: to write them takes the library 0.2 ms each time."""
    file = m.POOL.FindFileByName(name)
    return (*(needed.serialized_pb for needed in file.dependencies), file.serialized_pb)
