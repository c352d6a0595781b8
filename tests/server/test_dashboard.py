"""The dashboard in a real browser: content, keyboard, live changes, narrow screens, light and dark, accessibility.

`python -m tests.server.test_dashboard docs` makes the pictures of docs/monitoring.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer, Settings
from actorproc.admin.trace import trace
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.server.fleet import NAME, FakeFleet
from tests.servers import CACHE, free_ports

AXE = "axe-core@4.11.0"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TOKEN, READ_TOKEN = "a-token-for-the-tests", "a-token-that-only-reads"
PICTURES: list[tuple[str, int, Literal["light", "dark"]]] = [
    ("dashboard.png", 1440, "light"),
    ("dashboard-dark.png", 1440, "dark"),
    ("dashboard-phone.png", 390, "light"),
    ("dashboard-phone-dark.png", 390, "dark"),
]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (Debian: apt install chromium)"),
]


def axe() -> str:
    """The accessibility checker, from npm."""
    script = CACHE / AXE / "package" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm, which brings axe-core, is not on PATH")
        script.parent.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", AXE], cwd=script.parent.parent, check=True)
        (archive,) = script.parent.parent.glob("*.tgz")
        subprocess.run(["tar", "xf", archive], cwd=script.parent.parent, check=True)
    return script.read_text()


@contextmanager
def dashboard(container: str) -> Iterator[str]:
    """The command itself, in a process of its own."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "actorproc", "dashboard", "--container", container, "--http", f"127.0.0.1:{port}"]
    environment = {**os.environ, "ACTORPROC_HTTP_TOKEN": TOKEN, "ACTORPROC_HTTP_READ_TOKEN": READ_TOKEN}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        await opened.close()


@asynccontextmanager
async def page(
    opened: Browser, url: str, width: int = 1440, scheme: Literal["light", "dark"] = "light"
) -> AsyncIterator[Page]:
    """The page with the token, which fails the test if a script fails."""
    context = await opened.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    await context.add_init_script(f"sessionStorage.setItem('actorproc-token', '{TOKEN}')")
    failures: list[str] = []
    shown = await context.new_page()
    shown.on("pageerror", lambda error: failures.append(str(error)))
    await until_answered(url)
    await shown.goto(url)
    yield shown
    await context.close()
    assert failures == []


async def until_answered(url: str) -> None:
    async with httpx.AsyncClient() as http:
        with anyio.fail_after(60):
            while True:
                try:
                    await http.get(url)
                    return
                except httpx.ConnectError:
                    await anyio.sleep(0.1)


async def axe_finds_nothing(shown: Page, checker: str) -> None:
    await shown.evaluate(checker)
    found: dict[str, Any] = await shown.evaluate("axe.run()")
    assert [(v["id"], v["nodes"][0]["html"]) for v in found["violations"]] == []


async def test_the_fleet_is_shown_well_on_each_screen_and_axe_finds_nothing(tmp_path: Path) -> None:
    fleet, checker = FakeFleet(tmp_path), axe()
    await fleet.write()
    await fleet.write_history()
    screens: list[tuple[int, Literal["light", "dark"]]] = [
        (1440, "light"),
        (1440, "dark"),
        (390, "light"),
        (390, "dark"),
    ]
    with dashboard(fleet.container) as url:
        async with browser() as opened:
            for width, scheme in screens:
                async with page(opened, f"{url}#/{NAME}/partition/5", width, scheme) as shown:
                    await expect(shown.get_by_role("heading", level=1)).to_have_text(
                        "1 partition of 16 is not progressing"
                    )
                    await expect(shown.locator("#errors")).to_contain_text("PartitionStuck: no progress for 300 s")
                    await expect(shown.locator("#errors")).to_contain_text("in the last day: 15 min, at most 1")
                    await expect(shown.locator("#partition")).to_contain_text("has been on host-01 for 15 min")
                    await expect(shown.locator("#day")).to_contain_text("actorproc: 0.1.0 → 0.2.0")
                    await expect(shown.locator("#outlook")).to_contain_text("at prices of S3 Standard")
                    assert await shown.evaluate("document.documentElement.scrollWidth") <= width
                    await axe_finds_nothing(shown, checker)


async def test_the_first_view_of_two_thousand_partitions_takes_less_than_200_kib(tmp_path: Path) -> None:
    fleet, sizes = FakeFleet(tmp_path, hosts=20, partitions=2_000), list[int]()
    await fleet.write()
    with dashboard(fleet.container) as url:
        async with browser() as opened, page(opened, url) as shown:
            network = await shown.context.new_cdp_session(shown)
            await network.send("Network.enable")
            network.on("Network.dataReceived", lambda event: sizes.append(event["encodedDataLength"]))
            await shown.reload()
            await expect(shown.locator("#headline")).to_have_text("1 partition of 2,000 is not progressing")
    assert 10 * 1024 < sum(sizes) < 200 * 1024


async def test_arrow_keys_move_between_partitions_and_enter_chooses_one(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    with dashboard(fleet.container) as url:
        async with browser() as opened, page(opened, url) as shown:
            await shown.locator(".cell").first.focus()
            for key in ("ArrowRight", "ArrowDown", "Enter"):
                await shown.keyboard.press(key)
            await expect(shown).to_have_url(f"{url}#/{NAME}/partition/3")
            await expect(shown.locator("#partition")).to_contain_text("40 records from 10,004 on")


async def test_a_new_heartbeat_changes_the_page_without_a_reload(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    with dashboard(fleet.container) as url:
        async with browser() as opened, page(opened, url) as shown:
            await expect(shown.get_by_label("Partition 8, ok, lag 100")).to_be_visible()
            await fleet.write(lag=12_345)
            await expect(shown.get_by_label("Partition 8, ok, lag 12,345")).to_be_visible()


async def test_chosen_partitions_are_paused_with_a_reason_that_the_audit_shows(tmp_path: Path) -> None:
    why = " (the <b>service</b> is down)"
    fleet, checker = FakeFleet(tmp_path), axe()
    await fleet.write()
    with dashboard(fleet.container) as url:
        async with browser() as opened, page(opened, url, 390) as shown:
            await shown.get_by_role("button", name="stuck 1").click()
            await shown.locator("[data-partition='3']").click(modifiers=["Control"])
            await expect(shown.get_by_label("Partitions", exact=True)).to_have_value("5, 3")
            await shown.get_by_label("Reason").fill("the <b>service</b> is down")
            await shown.get_by_role("button", name="Act", exact=True).click()
            await expect(shown.locator("#confirm-text")).to_contain_text(
                "Pause partitions 5, 3, because: the <b>service"
            )
            await shown.locator("#confirm-ok").click()
            await expect(shown.locator("#act-note")).to_have_text(f"Done. Now: paused: 3{why}, 5{why}.")
            await expect(shown.locator("#asked")).to_have_text(f"Paused: 3{why}, 5{why}.")
            await shown.get_by_role("link", name="Audit").click()
            await expect(shown.locator("#audit-list tbody")).to_contain_text("pause partitions 3, 5")
            await expect(shown.locator("#audit-list tbody")).to_contain_text("the <b>service</b> is down")
            assert await shown.evaluate("document.documentElement.scrollWidth") <= 390
            await axe_finds_nothing(shown, checker)
            async with shown.expect_download() as saved:
                await shown.get_by_role("button", name="Export as JSON").click()
            (act,) = json.loads(Path(await (await saved.value).path()).read_text())
            assert (act["what"], act["reason"]) == ("pause", "the <b>service</b> is down")


class Picky(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.value == b"<b>bad</b>":
                ctx.dead_letter(record, "not a number", kind="Picky")
            else:
                ctx.emit(record, {"n": 1})


async def test_dead_letters_need_the_token(tmp_path: Path) -> None:
    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        for value in (b"1", b"<b>bad</b>"):
            await producer.send(value)
    await Processor(Picky, source=log, container=container).run(until_end=True)
    with dashboard(container) as url:
        async with browser() as opened, page(opened, f"{url}#/Picky/letters") as shown:
            await shown.get_by_role("link", name="0:1", exact=True).click()
            await expect(shown.locator("#letter pre").first).to_have_text("<b>bad</b>")
            await shown.get_by_role("link", name="What became of its record?").click()
            await expect(shown.locator("#record-note")).to_have_text("Record 1 of partition 0: it is a dead letter.")
            await expect(shown.locator("#record-parts pre").first).to_have_text("<b>bad</b>")
            await shown.get_by_label("Record").fill("0:0")
            await shown.get_by_role("button", name="Find").click()
            await expect(shown.locator("#record-note")).to_contain_text("it has 1 row in the output")
            await axe_finds_nothing(shown, axe())
            await shown.get_by_role("link", name="Dead letters").click()
            await shown.evaluate("sessionStorage.clear()")
            await shown.get_by_role("button", name="Replay all").click()
            await shown.get_by_role("textbox", name="Token").fill(READ_TOKEN)
            await shown.keyboard.press("Enter")
            await expect(shown.locator("#confirm-text")).to_contain_text("1 dead letter: all that this processor has.")
            await shown.locator("#confirm-ok").click()
            await expect(shown.locator("#token-problem")).to_contain_text("this token may only read")
            await shown.get_by_role("textbox", name="Token").fill(TOKEN)
            await shown.keyboard.press("Enter")
            await expect(shown.locator("#letters-note")).to_have_text("1 replayed.")


async def test_many_letters_say_how_many_and_a_chosen_one_is_in_sight_on_a_phone(tmp_path: Path) -> None:
    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([b"1"] + [b"<b>bad</b>"] * 230)
    await Processor(Picky, source=log, container=container, dead_letter_limit=1).run(until_end=True)
    with dashboard(container) as url:
        async with browser() as opened, page(opened, url, 390) as shown:
            await expect(shown.locator("#summary")).to_contain_text("In all231 records, 1 row, 230 dead letters")
            await shown.get_by_role("link", name="Dead letters", exact=True).click()
            await expect(shown.locator("#letters-note")).to_have_text("The first 200 of 230 dead letters.")
            await shown.get_by_role("button", name="Purge all").click()
            await expect(shown.locator("#confirm-text")).to_contain_text(
                "230 dead letters: all that this processor has."
            )
            await shown.get_by_role("button", name="Cancel").click()
            await shown.get_by_role("link", name="0:190", exact=True).click()
            await expect(shown.locator("#letter h2").first).to_have_text("Letter 0:190")
            await expect(shown.locator("#letter h2").first).to_be_in_viewport()
            await shown.get_by_role("link", name="Fleet").click()
            await shown.locator(".cell").first.click()
            await expect(shown.locator("#detail-title")).to_have_text("Partition 0")
            await expect(shown.locator("#detail-title")).to_be_in_viewport()


async def test_a_letter_is_corrected_and_replayed(tmp_path: Path) -> None:
    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        await producer.send(b"<b>bad</b>")
    await Processor(Picky, source=log, container=container, dead_letter_limit=1).run(until_end=True)
    with dashboard(container) as url:
        async with browser() as opened, page(opened, f"{url}#/Picky/letters/0:0", 390, "dark") as shown:
            await shown.get_by_role("button", name="Correct and replay").click()
            await expect(shown.get_by_label("Corrected payload")).to_have_value("<b>bad</b>")
            await axe_finds_nothing(shown, axe())
            await shown.get_by_label("Corrected payload").fill("1")
            await shown.locator("#confirm-ok").click()
            await expect(shown.locator("#letters-note")).to_have_text("1 replayed.")
    await Processor(Picky, source=log, container=container, dead_letter_limit=1).run(until_end=True)
    async with open_store(container, Settings()) as store:
        found = await trace(store, ProcessorLayout("Picky"), Settings(), "0", 1)
    assert found.outcome == "it has 1 row in the output"


async def test_a_reset_shows_its_effect_before_it_is_done_and_is_undone(tmp_path: Path) -> None:
    log, container, checker = str(tmp_path / "log"), str(tmp_path / "state"), axe()
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([b"1", b"2", b"3"])
    await Processor(Picky, source=log, container=container).run(until_end=True)
    with dashboard(container) as url:
        async with browser() as opened, page(opened, url, 390) as shown:
            await expect(shown.locator(".cell")).to_have_count(1)
            await shown.locator("select[name=act]").select_option("Reset")
            await shown.get_by_label("To", exact=True).fill("1")
            await shown.get_by_label("Reason").fill("a wrong rate")
            await shown.get_by_role("button", name="Act", exact=True).click()
            await expect(shown.locator("#confirm-text")).to_contain_text(
                "It repeats 2 and skips 0 records of 1 partition"
            )
            await expect(shown.locator("#confirm-detail tbody")).to_have_text("02020")
            await axe_finds_nothing(shown, checker)
            await shown.get_by_role("button", name="Cancel").click()
            await expect(shown.locator("#act-note")).to_have_text("Nothing was changed.")
            await shown.get_by_role("button", name="Act", exact=True).click()
            await shown.locator("#confirm-ok").click()
            await expect(shown.locator("#act-note")).to_contain_text(
                "Done: repeats 2 and skips 0 records of 1 partition"
            )
            await shown.locator("select[name=act]").select_option("Undo the latest reset")
            await shown.get_by_role("button", name="Act", exact=True).click()
            await shown.locator("#confirm-ok").click()
            await expect(shown.locator("#act-note")).to_contain_text(
                "Done: repeats 0 and skips 2 records of 1 partition"
            )
            await shown.get_by_role("link", name="Audit").click()
            await expect(shown.locator("#audit-list tbody")).to_contain_text("a wrong rate")


async def screenshots(folder: Path) -> None:
    """The pictures of docs/monitoring.md."""
    with tempfile.TemporaryDirectory() as place:
        fleet = FakeFleet(Path(place), hosts=6, partitions=240)
        await fleet.write()
        await fleet.write_history()
        with dashboard(fleet.container) as url:
            async with browser() as opened:
                for name, width, scheme in PICTURES:
                    async with page(opened, f"{url}#/{NAME}/partition/3", width, scheme) as shown:
                        await expect(shown.locator("#partition")).to_contain_text("10,004")
                        await expect(shown.locator("#outlook")).to_contain_text("at prices of S3 Standard")
                        await fleet.write(lag=200)
                        await anyio.sleep(2)
                        await shown.screenshot(path=folder / name, full_page=width > 1000)


if __name__ == "__main__":
    asyncio.run(screenshots(Path(sys.argv[1])))
