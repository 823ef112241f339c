"""SQL: a statement over the stores that were named at the start, its rows as table and plot."""

from __future__ import annotations

import asyncio
import csv
import io
from decimal import Decimal
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from oberth.console.console import Console, Page
from oberth.console.pages.topics import PAGE_SIZE, paged_count
from oberth.console.plots import BARS_MAX, bars
from oberth.console.security import Form
from oberth.console.sql import MISSING, ROWS_MAX, Job, Rows, SqlRunner, read_rows
from oberth.console.texts import cell, csv_cell


async def sql(console: Console, request: Request) -> Response:
    """The box, and the last statement of this browser."""
    runner = console.sql
    job = runner.job_of(_owner(request))
    found, figure, page, page_count = None, None, 1, 1
    if job is not None and job.state == "done":
        count = (await asyncio.to_thread(read_rows, job.path, 0, 0)).count
        page, page_count = paged_count(count, request.query_params.get("page", "1"))
        start = (page - 1) * PAGE_SIZE
        found = await asyncio.to_thread(read_rows, job.path, start, PAGE_SIZE)
        figure = _figure(await asyncio.to_thread(read_rows, job.path, 0, BARS_MAX))
    return console.render(
        request,
        "sql.html",
        is_there=runner.is_there,
        stores=runner.stores,
        missing=runner.missing,
        hint=MISSING,
        job=job,
        seconds=0.0 if job is None else max(console.now_s() - job.started_s, 0.0),
        names=[] if found is None else found.names,
        rows=[] if found is None else [[cell(each) for each in row] for row in found.rows],
        count=0 if found is None else found.count,
        is_cut=found is not None and found.count >= ROWS_MAX,
        figure=figure,
        page=page,
        page_count=page_count,
        statement="" if job is None else job.statement,
    )


def _owner(request: Request) -> str:
    return str(request.state.session.identifier)


def _figure(found: Rows) -> Any:
    """Bars of the first column of numbers that is not the first column; None: there is none."""
    for column in range(1, len(found.names)):
        values = [row[column] for row in found.rows]
        numbers = [each for each in values if isinstance(each, int | float | Decimal)]
        if numbers and len(numbers) == len(values) and not any(x is True for x in values):
            labels = [cell(row[0]) for row in found.rows]
            pairs = [(a, float(b)) for a, b in zip(labels, numbers, strict=True)]
            return bars(found.names[column], found.names[0], pairs, found.count)
    return None


async def start(console: Console, request: Request) -> Response:
    """Begin a statement."""
    form: Form = request.state.form
    console.sql.start(_owner(request), form.fields.get("statement", ""), console.now_s())
    return RedirectResponse("/sql", 303)


async def cancel(console: Console, request: Request) -> Response:
    """End the statement of this browser."""
    job = console.sql.job_of(_owner(request))
    if job is not None:
        await console.sql.cancel(job)
    return RedirectResponse("/sql", 303)


def _done(runner: SqlRunner, request: Request) -> Job:
    job = runner.job_of(_owner(request))
    if job is None or job.state != "done":
        raise HTTPException(404)
    return job


async def as_parquet(console: Console, request: Request) -> Response:
    """The rows as a file of Parquet."""
    return FileResponse(
        _done(console.sql, request).path,
        media_type="application/vnd.apache.parquet",
        filename="result.parquet",
    )


async def as_csv(console: Console, request: Request) -> Response:
    """The rows as CSV."""
    text = await asyncio.to_thread(_csv, _done(console.sql, request))
    headers = {"content-disposition": 'attachment; filename="result.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _csv(job: Job) -> str:
    found = read_rows(job.path, 0, ROWS_MAX)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([csv_cell(each) for each in found.names])
    writer.writerows([csv_cell(each) for each in row] for row in found.rows)
    return out.getvalue()


ROUTES: Final[dict[str, Page]] = {
    "/sql": sql,
    "/sql/result.parquet": as_parquet,
    "/sql/result.csv": as_csv,
}
POSTS: Final[dict[str, Page]] = {"/sql/start": start, "/sql/cancel": cancel}
