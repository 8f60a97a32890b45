"""HTTP without fsspec, whose client for it needs aiohttp: responses, and what an index page lists."""

from __future__ import annotations

from base64 import b64encode
from html.parser import HTMLParser
from http.client import HTTPResponse
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import Request, urlopen

TIMEOUT_S = 60  # without a byte: servers that make a file on request take their time


def get(url: str) -> HTTPResponse:
    """The response to a GET request, as a file.

    A name and password in the URL go to its host alone, not to where it redirects.

    Raises:
        OSError: there is no response, or it is an error.
    """
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    request = Request(urlunsplit(parts._replace(netloc=host)))
    if at:
        request.add_unredirected_header("Authorization", f"Basic {b64encode(unquote(credentials).encode()).decode()}")
    response: HTTPResponse = urlopen(request, timeout=TIMEOUT_S)
    return response


def list_index_page(folder: str, page: str) -> list[str]:
    """The names that lie in a folder, by the links on its index page; folders end in a slash."""
    parser = _LinkParser()
    parser.feed(page)
    urls = (urldefrag(urljoin(folder, link)).url.partition("?")[0] for link in parser.links)
    inner = (url.removeprefix(folder) for url in urls if url.startswith(folder))
    return sorted({name for name in inner if name and "/" not in name[:-1]})


class _LinkParser(HTMLParser):
    """Collects the addresses of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the address of a link."""
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]
