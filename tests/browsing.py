"""A served run and a real browser, for tests of the page."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from kgmlm.serving.serve import Server, address, bound, configured

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NONE = "there is no Chromium on the path; `make browser` says how to install it"
QUIET = 60_000  # milliseconds that a browser may take for a step; a busy machine is no failure


@contextmanager
def served(app: FastAPI, root_path: str = "") -> Iterator[str]:
    """The URL of an application that is served on this machine meanwhile."""
    with bound("127.0.0.1", 0) as at:
        server = Server(configured(app, "error", root_path), lambda: None)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield address(at)
        finally:
            server.should_exit = True
            thread.join(30)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; skips where there is none."""
    if CHROMIUM is None:
        pytest.skip(NONE)
    api = pytest.importorskip("playwright.sync_api", reason="`make browser` installs Playwright")
    with api.sync_playwright() as playwright:
        # Its sandbox needs a user namespace, which containers and root do not have.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visitor:
    """A page, and all that it does which it should not.

    Attributes:
        page: Playwright's.
        faults: errors in the console, exceptions, and requests to other origins.
    """

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        self.context.set_default_timeout(QUIET)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("request", self._asked)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "blob:")):
            self.faults.append(f"a request to {request.url}")

    def open(self, query: str = "") -> Any:
        """Go to a state of the page; the page once it is drawn."""
        self.page.goto(f"{self.url}/{query}")
        self.settled()
        return self.page

    def settled(self) -> None:
        """Wait until nothing is being asked."""
        drawn = ("#around h2:visible", "#error:visible", "#relations li:visible", "#hint:not(:empty)")
        self.page.wait_for_selector(", ".join(drawn))
        self.page.wait_for_selector("html:not([data-asking]) #found:not([aria-busy])", state="attached")

    def click(self, selector: str) -> None:
        """Click, and wait for what comes of it."""
        self.page.click(selector)
        self.settled()

    def go(self, query: str) -> None:
        """Another state, without loading the page again."""
        change = "q => (history.pushState(null, '', q), dispatchEvent(new PopStateEvent('popstate')))"
        self.page.evaluate(change, query)
        self.settled()

    def names(self) -> list[str]:
        """The answers that are shown."""
        result: list[str] = self.page.locator("#list .name").all_inner_texts()
        return result

    def violations(self) -> list[str]:
        """Serious and critical faults that axe-core finds."""
        from axe_playwright_python.sync_playwright import Axe

        only = {"resultTypes": ["violations"]}  # nothing is put together of what is as it should be
        result = Axe().run(self.page, options=only).response["violations"]
        return [
            f"{v['id']}: {node['html'][:200]}: {node.get('failureSummary', '')[:300]}"
            for v in result
            if v["impact"] in ("serious", "critical")
            for node in v["nodes"][:3]
        ]

    def close(self) -> None:
        """Leave; nothing may have gone wrong."""
        self.context.close()
        assert self.faults == []
