"""The pages in a real Chromium, on a real server that is fed over HTTP while one looks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from driving import Sender, Watched
from playwright.sync_api import Page, expect

from simulated_training import Training, simulate

pytestmark = pytest.mark.browser

LIVE_MS = 4000
"""A point is on the page this long after its ingest, at most: twice what is promised, once of three times, for a
busy machine."""


@pytest.fixture(scope="module")
def stalling() -> Training:
    """A plain bfloat16 training whose norm weights stall."""
    return simulate(blocks=2, steps=300, every=5)


@pytest.fixture(scope="module")
def served(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one server for all tests that do not need an empty one; each makes runs of its own."""
    with start_server(f"sqlite:///{tmp_path_factory.mktemp('pages') / 'served.db'}") as running:
        yield running.url


def heatmap_size(page: Page) -> list[int]:
    """Rows and columns of the heatmap as Plotly holds them."""
    size: list[int] = page.evaluate(
        "() => { const z = document.getElementById('figure-heatmap')._fullData[0]._input.z;"
        " const shape = z.shape.split(', ').map(Number); return shape }"
    )
    return size


def steps_shown(page: Page, figure: str) -> list[float]:
    """The range of a figure's step axis."""
    shown: list[float] = page.evaluate(
        f"() => document.getElementById('figure-{figure}')._fullLayout.xaxis.range"
    )
    return shown


def wait_drawn(page: Page) -> None:
    """All three figures are drawn."""
    for figure in ("heatmap", "loss", "efficiency"):
        page.locator(f"#figure-{figure} .main-svg").first.wait_for()


def drag_steps(page: Page, figure: str, start: float, end: float) -> None:
    """Zoom a figure by dragging between two fractions of its width."""
    plot = page.locator(f"#figure-{figure} .nsewdrag").first.bounding_box()
    assert plot
    y = plot["y"] + plot["height"] / 2
    page.mouse.move(plot["x"] + start * plot["width"], y)
    page.mouse.down()
    page.mouse.move(plot["x"] + end * plot["width"], y, steps=6)
    page.mouse.up()


def test_run_page_says_and_shows_where_updates_are_lost(
    served: str, watched: Watched, stalling: Training
) -> None:
    sender = Sender(served, stalling).start().send(20).send(40)
    page = watched.page
    page.goto(sender.path)
    wait_drawn(page)
    expect(page.locator("#verdict")).to_contain_text("Stalling.")
    expect(page.locator("#verdict")).to_contain_text(f"of {len(stalling.names)} layers")
    assert heatmap_size(page) == [len(stalling.names), len(stalling.steps)]
    picture = page.locator("#figure-heatmap .heatmaplayer image").first.bounding_box()
    assert picture
    assert picture["width"] > 300
    assert picture["height"] > 300
    labels = page.locator("#figure-heatmap .yaxislayer-above text").all_text_contents()
    assert set(labels) == set(stalling.names)
    assert "norm" in labels[0]
    assert page.locator("#figure-heatmap").get_attribute("aria-label")
    expect(page.locator("#alerts")).to_contain_text("precision stagnation")
    expect(page.locator("#alerts .tag")).to_have_text("firing")
    expect(page.locator("#nav-alerts")).to_contain_text("firing")
    expect(page.locator(".cure")).to_contain_text("12 bytes per parameter instead of 8")
    assert watched.complaints == []


def test_hover_says_the_whole_sentence(served: str, watched: Watched, stalling: Training) -> None:
    sender = Sender(served, stalling).start().send(60)
    page = watched.page
    page.goto(sender.path)
    wait_drawn(page)
    plot = page.locator("#figure-heatmap .nsewdrag").first.bounding_box()
    assert plot
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + 5)
    sentence = page.locator("#figure-heatmap .hoverlayer .hovertext")
    expect(sentence).to_contain_text("norm")
    expect(sentence).to_contain_text("% of updates lost")
    expect(sentence).to_contain_text(", step 1")


def test_live_points_arrive_without_reload_and_keep_zoom_and_focus(
    served: str, watched: Watched, stalling: Training
) -> None:
    sender = Sender(served, stalling).start().send(30)
    page = watched.page
    page.goto(sender.path)
    wait_drawn(page)
    expect(page.locator("body")).to_have_attribute("data-live", "live")
    page.evaluate("window.notReloaded = true")
    page.locator("#metric-switch a").nth(1).focus()
    drag_steps(page, "loss", 0.2, 0.6)
    expect(page.locator("#reset-zoom")).to_be_visible()
    zoomed = steps_shown(page, "loss")
    assert steps_shown(page, "heatmap") == steps_shown(page, "efficiency") == zoomed

    took = []
    for step, points in ((195, 40), (245, 50), (295, 60)):
        began = time.monotonic()
        sender.send(10)
        expect(page.locator("#step")).to_have_text(str(step))
        page.wait_for_function(
            "points => document.getElementById('figure-heatmap')._fullData[0]._input.z.shape.endsWith(points)",
            arg=f", {points}",
        )
        took.append((time.monotonic() - began) * 1000)
    assert min(took) < LIVE_MS
    assert page.evaluate("window.notReloaded") is True
    assert steps_shown(page, "loss") == steps_shown(page, "heatmap") == zoomed
    assert page.evaluate("document.activeElement.dataset.metric") == "efficiency"
    page.locator("#reset-zoom").click()
    page.wait_for_function("() => document.getElementById('figure-loss')._fullLayout.xaxis.range[1] === 295")
    assert "steps=" not in page.url
    assert watched.complaints == []


def test_a_link_shows_the_same_view(served: str, watched: Watched, stalling: Training) -> None:
    sender = Sender(served, stalling).start().send(60)
    page = watched.page
    page.goto(f"{sender.path}?metric=efficiency&steps=50-150&rows=2-8")
    wait_drawn(page)
    expect(page.locator("#metric-switch [aria-current]")).to_have_text("Efficiency")
    for figure in ("heatmap", "loss", "efficiency"):
        assert steps_shown(page, figure) == [50, 150]
    rows = page.evaluate("() => document.getElementById('figure-heatmap')._fullLayout.yaxis.range")
    assert rows == [8.5, 1.5]
    page.locator("#metric-switch a", has_text="Invisible").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#metric-switch [aria-current]")).to_have_text("Invisible")
    page.wait_for_function(
        "() => document.getElementById('figure-heatmap')._fullData[0].name === 'invisible_fraction'"
    )
    assert "metric=invisible" in page.url
    assert "steps=50-150" in page.url
    assert watched.complaints == []


def test_a_server_restart_heals_by_itself(
    start_server: Any, tmp_path: Path, watched: Watched, stalling: Training
) -> None:
    database = f"sqlite:///{tmp_path / 'served.db'}"
    page = watched.page
    with start_server(database) as running:
        sender = Sender(running.url, stalling).start().send(20)
        page.goto(sender.path)
        wait_drawn(page)
        expect(page.locator("#connection")).to_have_text("live")
        running.stop()
    expect(page.locator("#connection")).to_have_text("reconnecting …")
    expect(page.locator("#verdict")).to_be_visible()
    with start_server(database, "--port", str(urlsplit(sender.base).port)):
        sender.send(20)
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#step")).to_have_text("195")
    assert not [one for one in watched.complaints if "policy" in one or "exception" in one]


def test_without_a_stream_it_polls_and_a_hidden_tab_rests(
    served: str, watched: Watched, stalling: Training
) -> None:
    sender = Sender(served, stalling).start().send(20)
    page = watched.page
    page.route("**/api/v1/events", lambda route: route.fulfill(status=503))
    page.goto(sender.path)
    expect(page.locator("#connection")).to_have_text("polling")
    sender.send(10)
    expect(page.locator("#step")).to_have_text("145")
    page.unroute("**/api/v1/events")
    expect(page.locator("#connection")).to_have_text("live")
    hide = "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    hide += " document.dispatchEvent(new Event('visibilitychange')) }"
    page.evaluate(hide, True)
    sender.send(10)
    page.wait_for_timeout(1500)
    expect(page.locator("#step")).to_have_text("145")
    page.evaluate(hide, False)
    expect(page.locator("#step")).to_have_text("195")


HOSTILE = [
    "<img src=x onerror=alert(1)>.weight",
    "<script>alert(2)</script>",
    "<b>bold</b>.bias",
    '"><svg onload=alert(3)>',
    "%{x} $\\alpha$ &lt; {{ 7*7 }}",
    "=cmd()|' /C calc'!A0",
    "norm.\u202egnol.weight",
    "blocks." + "x" * 1017,
]


def test_hostile_names_are_shown_as_text(served: str, watched: Watched) -> None:
    training = simulate(names=HOSTILE, steps=200)
    sender = Sender(served, training).start(project="<i>p</i>", name="<img src=x onerror=alert(4)>").send(40)
    page = watched.page
    page.goto(sender.path)
    wait_drawn(page)
    labels = page.locator("#figure-heatmap .yaxislayer-above text").all_text_contents()
    assert HOSTILE[0] in labels
    assert HOSTILE[2] in labels
    assert HOSTILE[4] in labels
    assert page.locator(".yaxislayer-above tspan[style*=bold]").count() == 0
    plot = page.locator("#figure-heatmap .nsewdrag").first.bounding_box()
    assert plot
    seen = last = ""
    for row in range(len(HOSTILE)):
        page.mouse.move(
            plot["x"] + plot["width"] / 2, plot["y"] + (row + 0.5) / len(HOSTILE) * plot["height"]
        )
        page.wait_for_function(
            "last => !['', last].includes(document.querySelector('#figure-heatmap .hoverlayer').textContent)",
            arg=last,
        )
        last = page.locator("#figure-heatmap .hoverlayer").text_content() or ""
        seen += last
    assert HOSTILE[0] in seen
    assert HOSTILE[4] in seen
    for path in ("/", "/alerts"):
        page.goto(served + path)
        expect(page.locator("main")).to_contain_text("<img src=x onerror=alert(4)>")
    assert page.locator("img").count() == 0
    assert watched.complaints == []


def test_run_list_is_live_filtered_and_says_how_to_start(
    server: str, watched: Watched, stalling: Training
) -> None:
    page = watched.page
    page.goto(server)
    expect(page.locator("#verdict")).to_have_text("No run yet.")
    expect(page.locator("#runs")).to_contain_text("roundoff.init(")
    expect(page.locator("body")).to_have_attribute("data-live", "live")
    Sender(server, stalling, run_id="plain").start(name="plain bfloat16").send(60)
    expect(page.locator("#verdict")).to_have_text("Stalling. 1 of 1 run loses its updates to rounding.")
    Sender(server, simulate(blocks=1, steps=100, strategy="plus"), run_id="cured").start(
        name="Collage-plus"
    ).send(20)
    expect(page.locator(".runs tbody tr")).to_have_count(2)
    expect(page.locator("tr", has_text="Collage-plus")).to_contain_text("Healthy")
    expect(page.locator("tr", has_text="plain bfloat16").locator(".spark")).to_be_visible()
    page.locator("#q").fill("collage")
    expect(page.locator(".runs tbody tr")).to_have_count(1)
    assert page.url.endswith("/?q=collage")
    page.locator("#q").fill("nothing like it")
    expect(page.locator("#verdict")).to_have_text("No run matches.")
    page.goto(f"{server}/?q=plain")
    page.locator(".row-link").click()
    expect(page).to_have_url(f"{server}/runs/plain")
    assert watched.complaints == []


def test_theme_is_remembered_and_redraws(served: str, watched: Watched, stalling: Training) -> None:
    sender = Sender(served, stalling).start().send(20)
    page = watched.page
    page.goto(sender.path)
    wait_drawn(page)
    page.locator("#theme-toggle").click()
    page.wait_for_function(
        "() => document.getElementById('figure-loss')._fullLayout.paper_bgcolor === '#1b1e24'"
    )
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
    assert watched.complaints == []


def test_nothing_is_wider_than_a_phone(served: str, watched: Watched, stalling: Training) -> None:
    sender = Sender(served, stalling).start(name="a long name of a run " * 6, project="p" * 80).send(60)
    page = watched.page
    page.set_viewport_size({"width": 390, "height": 800})
    for path in (sender.path, served, f"{served}/alerts"):
        page.goto(path)
        if path == sender.path:
            wait_drawn(page)
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    assert watched.complaints == []
