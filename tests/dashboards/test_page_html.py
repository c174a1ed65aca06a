"""The pages as HTML: what they say, what they escape, how they answer again."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from memory_source import MemorySource
from page_client import PageClient

from roundoff.metrics import BYTES_PER_PARAMETER
from roundoff_dashboards.pages import STATIC
from roundoff_dashboards.pages.formats import age, number, rate
from simulated_training import simulate

HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}"


class Inventory(HTMLParser):
    """Every element with its attributes, and the text between."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(client: PageClient, path: str, status: int = 200, cookie: str = "") -> Inventory:
    """The page at `path`."""
    answer = client.get(path, headers={"Cookie": cookie} if cookie else None)
    assert answer.status_code == status, answer.text
    return Inventory(answer.text)


def test_the_run_list_answers_its_question(client: PageClient) -> None:
    page = read(client, "/")
    assert "1 of 2 runs loses its updates to rounding." in page.text
    assert "Stalling" in page.text
    assert "Healthy" in page.text
    assert "norm1.weight" in page.text
    assert sum(tag == "svg" and fields.get("class") == "spark" for tag, fields in page.elements) == 2


def test_the_run_list_filters(client: PageClient) -> None:
    assert "bf16" not in read(client, "/?state=finished").text.split("Verdict")[1]
    assert "No run matches." in read(client, "/?q=nothing").text
    assert "plus" in read(client, "/?project=demo").text


def test_an_empty_server_says_how_to_start(client: PageClient, source: MemorySource) -> None:
    source.summaries.clear()
    page = read(client, "/")
    assert "No run yet." in page.text
    assert "roundoff.init(" in page.text
    assert "run.watch(model, optimizer)" in page.text


def test_the_run_page_says_verdict_figures_and_cure(client: PageClient, source: MemorySource) -> None:
    source.alert("bf16")
    run = source.run("bf16")
    page = read(client, "/runs/bf16")
    assert f"Stalling. {run.headline}" in page.text
    assert run.explanation in page.text
    for text in ("of attempted updates", "1 is lossless", f"set {rate(run.lr)}", f"of {run.layers}"):
        assert text in page.text
    assert "12 bytes per parameter instead of 8" in page.text
    assert 'CollageAdamW(…, strategy="plus")' in page.text
    assert "precision stagnation" in page.text
    assert [fields["data-figure"] for _, fields in page.elements if "data-figure" in fields] == [
        "heatmap",
        "loss",
        "efficiency",
    ]


def test_a_healthy_run_has_no_cure_and_nothing_warm(client: PageClient) -> None:
    page = read(client, "/runs/plus")
    assert "Precision is not hurting this run." in page.text
    assert "Cure" not in page.text
    assert not [fields for _, fields in page.elements if "stalling" in (fields.get("class") or "")]


def test_a_run_whose_worst_layers_are_none_is_not_called_unmeasured(
    client: PageClient, source: MemorySource
) -> None:
    source.summaries["plus"].worst_layers = []
    text = read(client, "/runs/plus").text
    assert "No layer stalls." in text
    assert "No layer has been measured yet." not in text


def test_prices_are_those_of_the_strategies() -> None:
    strategies = pytest.importorskip("roundoff.optim").STRATEGIES
    for name, strategy in strategies.items():
        assert BYTES_PER_PARAMETER[name] == strategy.bytes_per_parameter


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"state": "stale", "last_seen": datetime.now(UTC) - timedelta(hours=2)},
            "gone quiet: last heard 2 h ago",
        ),
        ({"state": "crashed"}, "crashed after step 295"),
        ({"state": "preempted"}, "A restart continues this run."),
        ({"dropped": {"queue full": 1200}}, "1,200 dropped (queue full)"),
        ({"attempts": 3}, "Attempts3"),
        ({"loss": float("nan")}, "NaN"),
    ],
)
def test_odd_states_are_said(
    client: PageClient, source: MemorySource, changes: dict[str, object], said: str
) -> None:
    source.add("odd", simulate(blocks=1, steps=300, every=5), **changes)
    assert said in re.sub(r"\s+", " ", read(client, "/runs/odd").text).replace("Attempts ", "Attempts")


def test_a_run_without_data_can_be_shown(client: PageClient, source: MemorySource) -> None:
    source.add(
        "new",
        simulate(blocks=1, steps=100),
        health=None,
        headline="No verdict yet.",
        explanation="The first samples after the warm-up decide.",
        step=None,
        lr=None,
        loss=None,
        spark=[],
        lost_fraction=None,
        descent_efficiency=None,
        effective_lr=None,
        worst_layers=[],
        layers=0,
        layers_stalling=0,
    )
    source.trainings["new"].rows, source.trainings["new"].steps = [], []
    source.trainings["new"].names, source.trainings["new"].model = [], []
    source.trainings["new"].losses = []
    page = read(client, "/runs/new")
    assert "Waiting. No verdict yet." in page.text
    assert "No layer has been measured yet." in page.text
    for name in ("heatmap", "loss", "efficiency"):
        figure = client.get(f"/runs/new/figures/{name}.json").json()
        assert figure["layout"]["meta"]["empty"]


def test_hostile_text_is_text_everywhere(client: PageClient, source: MemorySource) -> None:
    names = [HOSTILE, "norm.weight"]
    source.add(
        "evil",
        simulate(names=names, steps=300, every=5),
        project=HOSTILE,
        name=HOSTILE,
        strategy=HOSTILE,
        tags=[HOSTILE],
        config={HOSTILE: HOSTILE},
        dropped={HOSTILE: 1},
    )
    source.alert("evil", layers=names, headline=HOSTILE, reason=HOSTILE, rule=HOSTILE)
    for path in ("/", "/runs.html", "/runs/evil", "/runs/evil/summary.html", "/alerts", "/alerts.html"):
        page = read(client, path)
        assert HOSTILE in page.text or HOSTILE.replace("-", " ") in page.text
        assert "{{ 7*7 }}" in page.text
        for tag, fields in page.elements:
            assert tag != "script" or fields["src"].startswith("/static/")  # type: ignore[union-attr]
            assert not [name for name in fields if name.startswith("on") or name == "style"]
            assert not (fields.get("href") or "").startswith("javascript")
    figure = client.get("/runs/evil/figures/heatmap.json").text
    assert "<script>" not in figure


def test_no_script_or_style_is_inline() -> None:
    for template in (STATIC.parent / "templates").glob("*.html"):
        html = template.read_text()
        assert not re.search(r"<script(?![^>]*src=)", html), template
        assert "<style" not in html, template
        assert not re.search(r"\son\w+=|\sstyle=", html), template


def test_what_does_not_exist_has_a_page(client: PageClient) -> None:
    page = read(client, "/runs/none", 404)
    assert "Not found." in page.text
    assert client.get("/runs/none/figures/loss.json").status_code == 404
    assert client.get("/runs/none/figures/loss.json").json()["title"] == "Not found"
    assert client.get("/runs/bf16/figures/pie.json").status_code == 422


def test_the_view_in_the_address_is_the_one_shown(client: PageClient) -> None:
    for asked, shown in (("", "lost"), ("?metric=moment", "moment"), ("?metric=<b>", "lost")):
        page = read(client, f"/runs/bf16{asked}")
        current = [fields for _, fields in page.elements if fields.get("aria-current") == "true"]
        assert [fields["data-metric"] for fields in current] == [shown]


def test_figures_follow_metric_and_theme(client: PageClient) -> None:
    light = client.get("/runs/bf16/figures/heatmap.json?metric=efficiency").json()
    dark = client.get("/runs/bf16/figures/heatmap.json?metric=efficiency&theme=dark").json()
    assert light["data"][0]["name"] == "descent_efficiency"
    assert light["layout"]["paper_bgcolor"] == "#ffffff"
    assert dark["layout"]["paper_bgcolor"] == "#1b1e24"
    assert set(light["data"][0]["z"]) == {"dtype", "bdata", "shape"}


def test_an_unchanged_answer_is_not_sent_again(client: PageClient, source: MemorySource) -> None:
    path = "/runs/bf16/figures/loss.json"
    first = client.get(path)
    again = client.get(path, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    source.trainings["bf16"].losses[-1] += 1
    try:
        assert client.get(path, headers={"If-None-Match": first.headers["ETag"]}).status_code == 200
    finally:
        source.trainings["bf16"].losses[-1] -= 1


def test_the_chosen_theme_comes_with_the_page(client: PageClient) -> None:
    assert "data-theme" not in read(client, "/").elements[0][1]
    for cookie, shown in (("dark", "dark"), ("light", "light"), ('"><script>', None)):
        page = read(client, "/", cookie=f"roundoff_theme={cookie}")
        assert page.elements[0][1].get("data-theme") == shown


def test_older_runs_are_a_link_away(client: PageClient, source: MemorySource) -> None:
    for index in range(60):
        source.summaries[f"r{index}"] = source.run("plus").model_copy(update={"id": f"r{index}"})
    page = read(client, "/?q=plus")
    more = [fields["href"] for _, fields in page.elements if "cursor" in (fields.get("href") or "")]
    assert more == ["/?q=plus&project=&state=&cursor=50"]
    assert "r59" in "".join(fields.get("href") or "" for _, fields in read(client, more[0] or "").elements)


def test_numbers_read_well() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert [age(now - timedelta(seconds=s), now) for s in (0, 59, 60, 7200, 200_000)] == [
        "0 s ago",
        "59 s ago",
        "1 min ago",
        "2 h ago",
        "2 d ago",
    ]
    assert [number(x) for x in (1.78, None, float("nan"), float("-inf"), 12345.6)] == [
        "1.780",
        "–",
        "NaN",
        "−∞",
        "1.235e+04",
    ]
