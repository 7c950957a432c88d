# SPDX-License-Identifier: Apache-2.0
"""The pages of `medflare serve`: a list of runs, one run, two runs side by side, and downloads of their
numbers.

The server only reads. It answers on this machine's own address, and only to requests that name it: a web
page from elsewhere cannot reach it through a name of its own that resolves here (DNS rebinding). What it
shows is escaped, and its pages load nothing from elsewhere; the only script is the one that reloads a run
that goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from flask import Flask, Response, abort, request

from medflare.core.errors import ConfigError, DataError
from medflare.core.run_record import RunRecord, read_record
from medflare.reporting import comparison, exports
from medflare.reporting.page import RECORDS_PER_SITE, collect_predictions, render
from medflare.reporting.templating import render_template, style_sheet
from medflare.serving.live_state import LiveState, live_state
from medflare.serving.prometheus import exposition
from medflare.serving.run_index import RunIndex, ServedRun

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
Result = TypeVar("Result")


def create_app(folder: Path, gallery: int = RECORDS_PER_SITE) -> Flask:
    """Return the application.

    Args:
        folder: of runs, of one run, or of a startup kit.
        gallery: records of patients shown for each site on a run's page; 0 shows none.

    Raises:
        DataError: there is no such folder.
    """
    index = RunIndex(folder)
    app = Flask("medflare", static_folder=None)
    _guard(app)
    _add_pages(app, index, gallery)
    _add_files(app, index)
    return app


def _guard(app: Flask) -> None:
    """Answer to this machine's own names only, and tell browsers what a page may do."""

    @app.before_request
    def only_this_machine() -> Response | None:
        name = (request.host or "").rsplit(":", 1)[0]
        return None if name in LOOPBACK else _text("This server answers to its own address only.", 403)

    @app.after_request
    def headers(response: Response) -> Response:
        response.headers.setdefault("Content-Security-Policy", _policy())
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cache-Control"] = "no-store"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    @app.errorhandler(DataError)
    def damaged(error: DataError) -> Response:
        return _text(str(error), 500)


def _add_pages(app: Flask, index: RunIndex, gallery: int) -> None:
    """Add the list of runs, the page of one, its head alone, and two side by side."""

    @app.get("/")
    def run_list() -> str:
        runs = [_listed(run) for run in index.runs()]
        view = {"folder": str(index.folder), "runs": runs}
        return render_template("runs.html", view, style=_style())

    @app.get("/runs/<name>/")
    def run_page(name: str) -> Response:
        run, record = _opened(index, name)
        state, nonce = live_state(run, record, with_drafts=gallery > 0), secrets.token_urlsafe(16)
        assert run.record is not None
        predictions = collect_predictions(record, run.record.parent) if gallery else []
        live = {"state": state, "nonce": nonce, "figures": exports.figures(record), "version": _version(run)}
        html = render(record, predictions, gallery, run.record.name, live=live)
        return Response(html, headers={"Content-Security-Policy": _policy(nonce)})

    @app.get("/runs/<name>/live")
    def live(name: str) -> dict[str, str]:
        run, record = _opened(index, name)
        state = live_state(run, record, with_drafts=gallery > 0)
        return {"version": _version(run), "head": render_template("live_state.html", state)}

    @app.get("/compare")
    def compare() -> str:
        names = (request.args.get("first", ""), request.args.get("second", ""))
        first, second = (_opened(index, name)[1] for name in names)
        return render_template("compare.html", comparison.view(first, second, names), style=_style())


def _add_files(app: Flask, index: RunIndex) -> None:
    """Add a run's numbers and figures as files, and the metrics of all runs."""

    @app.get("/runs/<name>/<table>.csv")
    def numbers(name: str, table: str) -> Response:
        makers: dict[str, Callable[[RunRecord], str]] = {
            "scores": exports.scores_csv,
            "rounds": exports.rounds_csv,
        }
        if table not in makers:
            abort(404)
        _, record = _opened(index, name)
        return _file(makers[table](record), "text/csv", f"{name}-{table}.csv")

    @app.get("/runs/<name>/figures/<figure>.svg")
    def figure(name: str, figure: str) -> Response:
        _, record = _opened(index, name)
        drawn = exports.figures(record).get(figure)
        if drawn is None:
            abort(404)
        return _file(exports.figure_svg(drawn), "image/svg+xml", f"{name}-{figure}.svg")

    @app.get("/metrics")
    def metrics() -> Response:
        served = []
        for run in index.runs():
            record = _record(run)
            if record is not None:
                served.append((run.name, record, live_state(run, record)))
        try:
            return Response(exposition(served), mimetype="text/plain")
        except ConfigError as error:
            return _text(str(error), 501)


def _policy(nonce: str = "") -> str:
    script = f"; script-src 'nonce-{nonce}'; connect-src 'self'" if nonce else ""
    directives = "form-action 'self'; frame-ancestors 'self'"
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; {directives}{script}"


def _style() -> Any:
    from markupsafe import Markup

    return Markup(style_sheet())


def _text(message: str, status: int) -> Response:
    return Response(message + "\n", status=status, mimetype="text/plain")


def _file(content: str, mimetype: str, name: str) -> Response:
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in name)
    return Response(
        content, mimetype=mimetype, headers={"Content-Disposition": f'attachment; filename="{safe}"'}
    )


def _found(index: RunIndex, name: str) -> ServedRun:
    run = index.find(name)
    if run is None:
        abort(_text(f"{index.folder}: holds no run '{name[:80]}'.", 404))
    return run


def _opened(index: RunIndex, name: str) -> tuple[ServedRun, RunRecord]:
    """Return a run and its record; answer 404 where there is none yet."""
    run = _found(index, name)
    if run.record is None:
        abort(_text(f"{name}: has no record yet; a run writes it when its sites have answered.", 404))
    return run, read_record(run.record)


def _record(run: ServedRun) -> RunRecord | None:
    try:
        return None if run.record is None else read_record(run.record)
    except DataError:
        return None


def _version(run: ServedRun) -> str:
    """Return a text that changes when anything changes that a run's page shows below its head."""
    if run.record is None or not run.record.is_file():
        return run.state
    facts = run.record.stat()
    return f"{run.state}.{facts.st_mtime_ns}-{facts.st_size}"


def _listed(run: ServedRun) -> dict[str, Any]:
    """Return the row of a run in the list."""
    record = _record(run)
    state = live_state(run, record) if record is not None else LiveState(state=run.state)
    started = (
        "" if run.started is None else datetime.fromtimestamp(run.started, UTC).strftime("%Y-%m-%d %H:%M")
    )
    return {
        "name": run.name,
        "job": run.job,
        "method": record.method if record else "",
        "state": run.state,
        "started": started,
        "words": state.words,
        "sites": ", ".join(sorted(record.sites)) if record else "",
        "readable": record is not None,
    }
