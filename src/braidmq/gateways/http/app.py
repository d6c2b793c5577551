"""The HTTP face of a node: is it alive, may traffic be sent to it, and what others mount here.

Both answers come from callables, so the app knows neither the node nor its store.
"""

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from braidmq import __version__
from braidmq.model.errors import BraidError

NO_STORE = {"cache-control": "no-store"}


def make_app(
    failure: Callable[[], BraidError | None],
    unready: Callable[[], str | None],
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """``failure`` is what broke, if anything did; ``unready`` is why not to send traffic yet."""

    async def health(_: Request) -> Response:
        error = failure()
        if error is None:
            return _answer(200, {"status": "ok", "version": __version__})
        return _answer(503, {"status": "failing", "error": _described(error)})

    async def ready(_: Request) -> Response:
        reason = unready()
        if reason is None:
            return _answer(200, {"status": "ready"})
        return _answer(503, {"status": "not-ready", "reason": reason})

    return Starlette(routes=[Route("/health", health), Route("/ready", ready), *routes])


def _described(error: BraidError) -> dict[str, str]:
    return {"code": error.code, "message": str(error)}


def _answer(status: int, body: dict[str, object]) -> Response:
    return JSONResponse(body, status, headers=NO_STORE)
