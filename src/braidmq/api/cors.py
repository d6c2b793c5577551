"""What a browser wants to hear before a page of another origin may ask, and read the answer (Fetch,
CORS). Who may is ``net/web_origins``, and has been looked at before.

No cookies are known here: a page sends ``Authorization`` itself, and credentials are not allowed.
"""

from starlette.requests import Request
from starlette.responses import Response

METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
PREFLIGHT_S = 600


def is_preflight(request: Request) -> bool:
    asked = "access-control-request-method" in request.headers
    return request.method == "OPTIONS" and asked and "origin" in request.headers


def preflight(request: Request) -> Response:
    """The same for every path: it tells nobody what there is."""
    headers = {
        "access-control-allow-methods": METHODS,
        "access-control-max-age": str(PREFLIGHT_S),
    }
    wanted = request.headers.get("access-control-request-headers")
    if wanted is not None and wanted.isascii() and wanted.isprintable():
        headers["access-control-allow-headers"] = wanted
    return Response(status_code=204, headers=headers)


def allow_origin(request: Request, response: Response) -> None:
    """Have the page that asked read the answer."""
    origin = request.headers.get("origin")
    if origin is not None:
        response.headers["access-control-allow-origin"] = origin
        response.headers["access-control-expose-headers"] = "*"
        response.headers["vary"] = "Origin"
