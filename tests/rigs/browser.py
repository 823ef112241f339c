"""A console in a real Chromium, looked at and used as a person does.

The browser and its driver are programs of others (Debian: chromium, chromium-driver).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

TIMEOUT_S: Final = 120
STARTS_MAX: Final = 3
PACKAGES: Final = ("selenium", "axe_core_python")
T = TypeVar("T")

_missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
_missing += [name for name in PACKAGES if find_spec(name) is None]
needs_browser = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(bool(_missing), reason=f"no browser: {', '.join(_missing)} not installed"),
]
"""Marks of a module whose tests want a browser."""


@dataclass
class Window:
    """A browser window on a console.

    While a page is left for another one, and while parts of it are renewed, the driver answers with
    errors of its own: an element that is gone, a node that it does not know, a page without a
    context. So whatever is asked is asked again until it is answered, and what would do something
    twice, a click, is done again only if the page did not see it.
    """

    driver: Any
    base: str
    axe: str

    def until(self, ask: Callable[[], T]) -> T:
        """What `ask` says as soon as it is something, whatever the driver's errors before."""
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.support.ui import WebDriverWait

        def answer(_: Any) -> list[T] | None:
            said = ask()
            return None if said is None or said is False else [said]

        wait = WebDriverWait(self.driver, TIMEOUT_S, ignored_exceptions=[WebDriverException])
        found = wait.until(answer)
        assert found is not None
        return found[0]

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        answer = self.until(lambda: [self.driver.execute_script(script, *arguments)])
        return answer[0]

    def open(self, path: str) -> None:
        """Goes to a page of the console."""
        self.until(lambda: [self.driver.get(self.base + path)])

    def leave(self) -> None:
        """Goes to an empty page: the one before asks its console again, which may be gone."""
        self.until(lambda: [self.driver.get("about:blank")])

    def text(self) -> str:
        """What a reader sees of the page."""
        return str(self.run("return document.querySelector('main').innerText"))

    def find(self, selector: str) -> None:
        """Waits for an element."""
        self.until(lambda: bool(self.driver.find_elements("css selector", selector)))

    def attribute(self, selector: str, name: str) -> str:
        """An attribute of the first such element; "" if there is none."""
        script = "return document.querySelector(arguments[0])?.getAttribute(arguments[1]) || ''"
        return str(self.run(script, selector, name))

    def click(self, selector: str) -> None:
        """Clicks with the mouse, once, and waits for the page behind it."""
        self.run("window.isOld = true; window.isClicked = false")

        def has_arrived() -> bool:
            self._click_once(selector)
            return self._has_arrived()

        self.until(has_arrived)

    def pick(self, selector: str) -> None:
        """Clicks with the mouse, once, what stays on this page."""
        self.run("window.isOld = true; window.isClicked = false")

        def is_clicked() -> bool:
            self._click_once(selector)
            return bool(self.driver.execute_script("return window.isClicked"))

        self.until(is_clicked)

    def _click_once(self, selector: str) -> None:
        """Clicks unless the page has seen a click, or is another one already."""
        script = """
            if (!window.isOld || window.isClicked) return null;
            document.addEventListener("click", () => { window.isClicked = true; }, true);
            const element = document.querySelector(arguments[0]);
            element.scrollIntoView({block: "center"});
            return element;
        """
        element = self.driver.execute_script(script, selector)
        if element is not None:
            element.click()

    def _has_arrived(self) -> bool:
        script = "return !window.isOld && document.readyState === 'complete'"
        return bool(self.driver.execute_script(script))

    def renew(self) -> None:
        """Loads the page again, as a person does who is in doubt."""
        self.run("window.isOld = true")

        def has_arrived() -> bool:
            if self.driver.execute_script("return Boolean(window.isOld)"):
                self.driver.refresh()
            return self._has_arrived()

        self.until(has_arrived)

    def fill(self, selector: str, text: str) -> None:
        """Types into a field."""

        def is_filled() -> bool:
            element = self.driver.find_element("css selector", selector)
            if element.get_property("value") != text:
                element.clear()
                element.send_keys(text)
            return bool(element.get_property("value") == text)

        self.until(is_filled)

    def unfold(self, summary: str) -> None:
        """Opens the part of a page that is called so."""
        script = """
            const found = [...document.querySelectorAll("summary")].find(
                (each) => each.innerText === arguments[0]);
            if (found) found.parentElement.open = true;
            return Boolean(found);
        """
        self.until(lambda: bool(self.driver.execute_script(script, summary)))

    def keys(self, *keys: str) -> None:
        """Presses keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def violations(self) -> list[str]:
        """What axe-core's rules say against the page."""
        script = f"""{self.axe};
            const done = arguments[0];
            axe.run().then((r) => done(r.violations), () => done(null));
        """
        found = self.until(lambda: self.driver.execute_async_script(script))
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
            for each in found
        ]

    def complaints(self) -> list[str]:
        """What stands in the browser's console."""
        return [each["message"] for each in self._log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked since the last call."""
        found = []
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(str(message["params"]["request"]["url"]))
        return found

    def _log(self, name: str) -> list[dict[str, Any]]:
        (found,) = self.until(lambda: [self.driver.get_log(name)])
        return list(found)

    def media(self, scheme: str, width: int, height: int) -> None:
        """The reader's wishes and the size of the window."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        for command, parameters in (
            ("Emulation.setEmulatedMedia", {"features": features}),
            ("Emulation.setDeviceMetricsOverride", size),
        ):
            self.until(partial(self._command, command, parameters))

    def _command(self, command: str, parameters: dict[str, Any]) -> bool:
        self.driver.execute_cdp_cmd(command, parameters)
        return True

    def picture(self, path: Path) -> None:
        """Saves what is seen."""
        self.until(lambda: bool(self.driver.save_screenshot(str(path))))


@contextmanager
def opened(make_profile: Callable[[], Path]) -> Iterator[Window]:
    """A window of a browser of its own, on no console yet."""
    found = find_spec("axe_core_python")
    assert found is not None
    assert found.origin is not None
    axe = Path(found.origin).with_name("axe.min.js").read_text("utf-8")
    driver = _started(make_profile)
    try:
        made = Window(driver, "", axe)
        made.media("light", 1280, 900)
        yield made
    finally:
        driver.quit()


def _started(make_profile: Callable[[], Path]) -> Any:
    """A browser; one that does not come up in time is started again, with a profile of its own."""
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    for attempt in range(1, STARTS_MAX + 1):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={make_profile()}",
        ):  # fmt: skip
            options.add_argument(flag)
        options.accept_insecure_certs = True  # consoles of tests make their own
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        try:
            driver = webdriver.Chrome(
                options=options, service=Service(shutil.which("chromedriver"))
            )
        except WebDriverException:
            if attempt == STARTS_MAX:
                raise
            continue
        # The driver's own limits end before that of the connection to it.
        connection = driver.command_executor
        assert not isinstance(connection, str)
        connection.client_config.timeout = 4 * TIMEOUT_S
        driver.set_page_load_timeout(TIMEOUT_S)
        driver.set_script_timeout(TIMEOUT_S)
        return driver
    raise AssertionError("unreachable")
