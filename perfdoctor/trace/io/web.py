"""The web without fsspec, whose client for it is no dependency of ours: responses, and what an index page lists."""

from __future__ import annotations

from base64 import b64encode
from html.parser import HTMLParser
from http.client import HTTPResponse
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import Request, urlopen

SECONDS = 60  # without a byte: servers that make a file on request take their time


def get(url: str) -> HTTPResponse:
    """The answer to a request, as a file; a name and password in the URL are for this host alone.

    Raises:
        OSError: there is none, or it says that something is wrong.
    """
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    request = Request(urlunsplit(parts._replace(netloc=host)))
    if at:
        request.add_unredirected_header("Authorization", f"Basic {b64encode(unquote(credentials).encode()).decode()}")
    response: HTTPResponse = urlopen(request, timeout=SECONDS)
    return response


def listed(folder: str, page: str) -> list[str]:
    """What lies in a folder, by the links on its page, as web servers make them; what ends in a slash is a folder.

    Args:
        folder: The URL of the page, up to its last slash.
        page: The page, as HTML.
    """
    links = _Links()
    links.feed(page)
    urls = (urldefrag(urljoin(folder, link)).url.partition("?")[0] for link in links.found)
    inner = (url.removeprefix(folder) for url in urls if url.startswith(folder))
    return sorted({name for name in inner if name and "/" not in name[:-1]})


class _Links(HTMLParser):
    """Collects where the links of a page lead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take a link down."""
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
