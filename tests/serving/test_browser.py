"""The page as people use it, in a real Chromium: every flow, hostile names, accessibility, no other origin.

KGMLM_SCREENSHOTS=RUN draws the pictures of the docs from a run.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from browsing import Visitor, chromium, served
from conftest import TINY_SETTINGS, Cli

import kgmlm
from kgmlm.core.tables import ENDS
from kgmlm.prediction.listing import read_list
from kgmlm.prediction.new_facts import FILE
from kgmlm.runs import feedback
from kgmlm.serving.serve import Reloading, service

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
SCHEMES = ("light", "dark")
CAPITAL = "?head=france&relation=capital"
LONG = 'A very long description, with <b>markup</b> & "quotes". ' * 90
HOSTILE = {
    "markup": ("<img src=x onerror=alert(1)>", "</script><script>alert(1)</script><style>*{color:red}"),
    "quotes": ("O'Neill \"the\" `b\\r`${x} {{y}} %s &amp;", "it's \"quoted\" &lt;b&gt;"),
    "rtl": ("مرحبا بالعالم \u202eevil\u202c", "שלום עולם, \u202eabc"),
    "emoji": ("👩‍👩‍👧‍👦🦠🏳️‍🌈", "🦠" * 50),
    "long": ("Llanfair" * 60, LONG[:5000]),
    "unbroken": ("x" * 1000, "y" * 5000),
    "a/b?c=d&e#f %2F": ("a/b?c=d&e#f %2F", ""),
    "javascript:alert(1)": ("javascript:alert(1)", "data:text/html,<script>alert(1)</script>"),
    "__proto__": ("constructor", "__proto__"),
    "=1+1": ("=1+1, two\u2028lines", "a,b;\"c\""),
}  # fmt: skip
RELATIONS = {"<u>of</u>": "<u>of</u>", "near\"'": "near \"'", "→ \u202eto": "→ \u202eto"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def folder(toy_run: Path, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with rules and probabilities."""
    run = shutil.copytree(toy_run, tmp_path_factory.mktemp("browsed") / "toy")
    assert cli("tune", run, "--add", "rules", "-q").returncode == 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
        kgmlm.calibrate(run, progress=False)
    return run


@pytest.fixture(scope="module")
def url(browser: Any, folder: Path) -> Iterator[str]:
    with served(service(folder)) as at:
        yield at


@pytest.fixture(scope="module")
def hostile(browser: Any, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run without probabilities, whose labels, names, descriptions and types mean no good."""
    data, run = (tmp_path_factory.mktemp("hostile") / name for name in ("data", "run"))
    data.mkdir()
    rows = [(label, name, text, "<b>kind</b>|\u202ekind") for label, (name, text) in HOSTILE.items()]
    table = [("label", "name", "description", "types"), *rows]
    (data / "entities.tsv").write_text("".join("\t".join(row) + "\n" for row in table), "utf-8")
    named = [("label", "name"), *RELATIONS.items()]
    (data / "relations.tsv").write_text("".join("\t".join(row) + "\n" for row in named), "utf-8")
    labels, relations = list(HOSTILE), list(RELATIONS)
    triples = [(h, relations[(i + j) % 3], t) for i, h in enumerate(labels) for j, t in enumerate(labels)
               if i != j and (i * j) % 3 != 1]  # fmt: skip
    for split, part in (("train", triples[5:]), ("valid", triples[:5])):
        (data / f"{split}.tsv").write_text("".join("\t".join(t) + "\n" for t in part), "utf-8")
    done = cli("train", "--dataset", data, "--model", "scratch", "--output", run, "--max-steps", "2", "-q",
               *TINY_SETTINGS, "--set", "text.neighbors=3")  # fmt: skip
    assert done.returncode == 0, done.stderr
    with served(service(run)) as at:
        yield at


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visitor]]:
    """Opens pages; none may have faults in the end."""
    opened: list[Visitor] = []

    def make(url: str, **options: Any) -> Visitor:
        opened.append(Visitor(browser, url, **options))
        return opened[-1]

    yield make
    for visitor in opened:
        visitor.close()


def test_it_opens_with_facts_that_the_graph_lacks(visit: Any, url: str, folder: Path) -> None:
    visitor = visit(url)
    page = visitor.open()
    assert page.url == f"{url}/"
    page.wait_for_selector(".fact", timeout=300_000)  # a process of its own looks for them
    table, _ = read_list(folder / FILE)
    rows = list(zip(*(table.column(f"{end}_name").to_pylist() for end in ENDS), strict=True))
    assert page.locator(".statement").all_inner_texts() == [" ".join(row) for row in rows[:10]]
    assert all(text.startswith("because ") for text in page.locator(".reason").all_inner_texts())
    capital = page.locator("#relations li:has-text('has the capital')")
    graph = kgmlm.load_graph("toy")
    assert capital.locator(".number").inner_text() == str(
        sum(r == "capital" for part in graph.splits.values() for _, r, _ in graph.labeled(part))
    )
    relations = table.column("relation").to_pylist()
    page.select_option("#facts-head select", relations[0])
    shown = min(10, relations.count(relations[0]))
    page.wait_for_function(f"() => document.querySelectorAll('.fact').length == {shown}")
    visitor.click(".statement >> nth=0")
    first = dict(zip(ENDS, (table.column(end)[0].as_py() for end in ENDS), strict=True))
    assert urlencode({"head": first["head"], "relation": first["relation"], "why": first["tail"]}) in page.url
    assert page.inner_text(".hole") == rows[0][2]
    page.go_back()
    page.wait_for_selector(".fact")
    visitor.click("#relations a:has-text('borders') >> nth=0")
    assert "relation=borders" in page.url
    assert visitor.names()


def test_a_question_is_answered(visit: Any, url: str, folder: Path) -> None:
    visitor = visit(url)
    page = visitor.open(CAPITAL)
    expected = kgmlm.open_run(folder, device="cpu").rank(head="france", relation="capital", k=40)
    known = expected[expected["known"]]["tail_name"].tolist()
    assert visitor.names() == expected[~expected["known"]]["tail_name"].tolist()[:10]
    assert page.inner_text("#known summary") == f"{len(known)} known: {', '.join(known)}"
    assert page.locator("#known .answer").first.is_hidden()
    chosen = page.text_content("[aria-current]")
    assert chosen == page.inner_text(".hole")
    assert page.inner_text("#why-title") == f"Why {chosen}?"
    page.click("text=What the model was told")
    assert "France. country in western Europe | has the capital |" in page.inner_text(".told")
    assert page.title() == "France has the capital ? · kgmlm"
    assert page.locator("#why .balance dt").count() == 2
    assert page.locator(".tokens li").count() >= 1
    assert page.locator(".drawing .node").count() > 4
    likely = expected[~expected["known"] & (expected["probability"] >= 0.01)]
    assert page.locator(".drawing .edge.is-predicted").count() == min(5, len(likely))
    assert page.locator("#found .bar-fill i").count() > 10


def test_a_question_is_asked_by_typing(visit: Any, url: str) -> None:
    visitor = visit(url)
    page = visitor.open()
    page.fill("[aria-label=Entity]", "germny")
    page.wait_for_selector("#sentence [role=option]:visible")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("[aria-label=Entity]", "aria-activedescendant")
    page.keyboard.press("Enter")
    visitor.settled()
    assert "head=germany" in page.url
    page.focus("[aria-label=Relation]")
    page.wait_for_selector("#sentence [role=option]:visible")
    assert "has" in page.inner_text(
        "#sentence [role=option]:visible >> nth=0"
    )  # what Germany has comes first
    page.keyboard.type("bord")
    page.wait_for_selector("#sentence :not([aria-busy]) > [role=option]:only-child:visible")
    page.keyboard.press("Enter")
    visitor.settled()
    assert "relation=borders" in page.url
    assert "Germany" in page.text_content(".told")
    visitor.click("text=ask for the head")
    assert "tail=germany" in page.url
    assert page.evaluate("[...document.querySelectorAll('#sentence > *')].map(e => e.className)")[:3] == [
        "hole is-filled", "combobox", "combobox",
    ]  # fmt: skip
    page.fill("[aria-label=Entity]", "zzzz")
    page.wait_for_selector("#sentence :not([aria-busy]) > .none:visible")
    assert page.inner_text("#sentence .none") == "No match."
    page.keyboard.press("Escape")
    assert page.input_value("[aria-label=Entity]") == "Germany"
    page.fill("[aria-label=Entity]", "zzzz")
    page.wait_for_selector("#sentence :not([aria-busy]) > .none:visible")
    page.keyboard.press("Enter")
    page.wait_for_selector("#new:visible")
    visitor.settled()
    assert page.input_value("#new-name") == "zzzz"
    assert "name=zzzz" in page.url


def test_the_picker_begins_with_examples(visit: Any, url: str) -> None:
    page = visit(url).open("?relation=capital")
    assert "Choose an entity" in page.inner_text("#hint")
    page.focus("[aria-label=Entity]")
    page.wait_for_selector("#sentence [role=option]:visible")
    graph = kgmlm.load_graph("toy")
    heads = [h for h, r, _ in graph.splits["train"].tolist() if graph.relations[r].label == "capital"]
    names = {graph.entities[h].surface for h in heads}
    shown = page.locator("#sentence [role=option]:visible .option-text").all_inner_texts()
    assert shown
    assert set(shown) <= names
    page.keyboard.press("Enter")  # nothing was typed or chosen
    assert "head=" not in page.url


def test_every_state_has_a_link_and_back_works(visit: Any, url: str) -> None:
    visitor = visit(url)
    page = visitor.open(CAPITAL)
    first = visitor.names()
    visitor.click("text=Next →")
    second = visitor.names()
    assert len(second) == 10
    assert not set(first) & set(second)
    visitor.click("#list .name >> nth=3")
    assert page.inner_text(".hole") == second[3]
    link = page.url
    assert "page=2" in link
    assert "why=" in link
    page.go_back()
    page.go_back()
    page.wait_for_selector(f"#list .name:has-text('{first[0]}')")
    assert visitor.names() == first
    page.go_forward()
    page.wait_for_selector(f"#list .name:has-text('{second[0]}')")
    page.go_forward()
    page.wait_for_selector(f".hole:has-text('{second[3]}')")
    assert page.url == link
    other = visit(url)
    assert other.open(link.removeprefix(f"{url}/")).inner_text(".hole") == second[3]
    assert other.names() == second
    visitor.click("text=← Previous")
    assert visitor.names() == first


def test_answers_are_filtered_and_saved(visit: Any, url: str, tmp_path: Path) -> None:
    visitor = visit(url)
    page = visitor.open(CAPITAL)
    assert page.locator("#known .given").count() > 0
    assert page.locator("#list .given, #list .is-known").count() == 0
    page.evaluate(
        "const r = document.getElementById('min'); r.value = 0.3; r.dispatchEvent(new Event('change'))"
    )
    visitor.settled()
    assert "min=0.3" in page.url
    shown = page.locator("#list .value").all_inner_texts()
    assert all(
        text.startswith(">") or float(text.removesuffix("?").removesuffix(" %")) >= 30 for text in shown
    )
    page.evaluate(
        "const r = document.getElementById('min'); r.value = 0; r.dispatchEvent(new Event('change'))"
    )
    visitor.settled()
    saved = {}
    for kind in ("csv", "json"):
        with page.expect_download() as waited:
            page.click(f"[data-save={kind}]")
        waited.value.save_as(tmp_path / f"answers.{kind}")
        saved[kind] = (tmp_path / f"answers.{kind}").read_text("utf-8")
    rows = list(csv.DictReader(saved["csv"].splitlines()))
    known = page.locator("#known .name").all_text_contents()
    assert sorted(row["name"] for row in rows) == sorted([*known, *visitor.names()])
    assert [int(row["rank"]) for row in rows] == sorted(int(row["rank"]) for row in rows)
    body = json.loads(saved["json"])
    assert (body["head"], body["relation"], body["tail"]) == ("france", "capital", None)
    assert [row["entity"] for row in body["predictions"]] == [row["entity"] for row in rows]


def test_no_cell_of_a_saved_table_is_a_formula(visit: Any, hostile: str, tmp_path: Path) -> None:
    page = visit(hostile).open("?" + urlencode({"head": "__proto__", "relation": next(iter(RELATIONS))}))
    with page.expect_download() as waited:
        page.click("[data-save=csv]")
    waited.value.save_as(tmp_path / "answers.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "answers.csv").read_bytes().decode(), newline="")))
    (row,) = (row for row in rows if row["entity"] == "'=1+1")
    assert row["name"] == "'=1+1, two\u2028lines"
    assert all(float(row["score"]) < 0 for row in rows)


def test_two_answers_are_compared(visit: Any, url: str) -> None:
    visitor = visit(url)
    page = visitor.open(CAPITAL)
    visitor.click("#list .answer:not(.is-chosen) a.compare >> nth=0")
    assert page.inner_text("#why-title") == "Why not?"
    assert "is ahead of" in page.inner_text(".verdict")
    assert page.locator(".side").count() == 2
    page.fill("[aria-label='Compare with another entity']", "Italy")
    page.wait_for_selector("#why [role=option]")
    page.keyboard.press("Enter")
    visitor.settled()
    assert "vs=italy" in page.url  # far down, so it is asked for by itself
    assert "Italy" in page.inner_text(".verdict")
    visitor.click("text=Stop comparing")
    assert page.inner_text("#why-title").startswith("Why ")
    assert "vs=" not in page.url


def likely_question(folder: Path) -> str:
    """The address of a question with a new answer that is probable enough to be drawn."""
    run = kgmlm.open_run(folder, device="cpu")
    for head, relation, _ in sorted(run.graph.labeled(run.graph.splits["train"])):
        answers = run.rank(head=head, relation=relation, k=5, novel=True)
        if answers["probability"].max() >= 0.02:
            return f"?{urlencode({'head': head, 'relation': relation})}"
    raise AssertionError("no answer has .02 or more")


def test_one_walks_around(visit: Any, url: str, folder: Path) -> None:
    visitor = visit(url)
    page = visitor.open(likely_question(folder))
    page.click("#around summary")
    listed = page.locator("#around details li").all_inner_texts()
    assert len(listed) == page.locator(".drawing .node").count()
    assert any("(known)" in line for line in listed)
    assert any("%)" in line for line in listed)
    who = str(page.text_content(".drawing .node title")).rpartition(" (")[0]
    page.evaluate("document.querySelector('.drawing .node').dispatchEvent("
                  "new MouseEvent('click', {bubbles: true, cancelable: true}))")  # fmt: skip
    page.wait_for_function(
        "who => document.querySelector('#around h2').innerText === `Around ${who}`", arg=who
    )
    visitor.settled()
    assert page.input_value("[aria-label=Entity]") == who
    assert page.input_value("[aria-label=Relation]")
    page.set_viewport_size({"width": 375, "height": 800})
    page.wait_for_selector(".drawing .dot")


def test_what_if_there_were_another_entity(visit: Any, url: str) -> None:
    visitor = visit(url)
    page = visitor.open(CAPITAL)
    page.click("text=What if")
    assert page.locator(".proposed button").count() == 3
    page.fill("#new-name", "Atlantis")
    page.wait_for_selector("#hint:has-text('Nothing is known of this but its name')")
    page.fill("#new-about", "a lost country in the sea")
    page.wait_for_selector("#around h2:has-text('Around Atlantis')")
    page.wait_for_selector(".told:has-text('a lost country in the sea')", state="attached")
    visitor.settled()
    assert page.inner_text("#hint") == ""
    assert "Atlantis. a lost country in the sea | has the capital |" in page.text_content(".told")
    assert len(visitor.names()) == 10
    assert page.locator(".judge").count() == 0
    for label, typed in (
        ("Relation of a known triple", "capi"),
        ("Other entity of a known triple", "pariss"),
    ):
        page.fill(f"[aria-label='{label}']", typed)
        page.wait_for_selector("#new [role=option]:visible")
        page.keyboard.press("Enter")
    page.wait_for_selector("#around .head:has-text('1 triple given')")
    visitor.settled()
    page.click("text=the other way round")
    for label, typed in (("Other entity of a known triple", "Spai"), ("Relation of a known triple", "bord")):
        page.fill(f"[aria-label='{label}']", typed)
        page.wait_for_selector("#new [role=option]:visible")
        page.keyboard.press("Enter")
    page.wait_for_selector("#around .head:has-text('2 triples given')")
    visitor.settled()
    rows = ["Atlantis has the capital Paris", "Spain borders Atlantis"]
    assert page.locator("#given li > span").all_inner_texts() == rows
    page.click("#around summary")
    assert [f"{line} (known)" for line in rows] == page.locator("#around details li").all_inner_texts()[:2]
    assert page.locator(".answer:has-text('Paris') .given").text_content() == "known"
    link = page.url
    visitor.click("[aria-label='Remove the triple with Spain']")
    assert page.locator("#given li > span").all_inner_texts() == rows[:1]
    page.click("text=What if")
    page.wait_for_selector("#around h2:has-text('Around France')")
    assert "given=" not in page.url
    again = visit(url).open(link.removeprefix(f"{url}/"))
    assert again.input_value("#new-name") == "Atlantis"
    assert again.input_value("#new-about") == "a lost country in the sea"
    assert again.locator("#given li > span").all_inner_texts() == rows


def test_a_new_entity_is_proposed(visit: Any, url: str) -> None:
    visitor = visit(url)
    page = visitor.open(CAPITAL)
    page.click("text=What if")
    proposed = page.inner_text(".proposed button >> nth=0")
    page.click(".proposed button >> nth=0")
    page.wait_for_selector(f"#around h2:has-text('Around {proposed}')")
    visitor.settled()
    assert page.input_value("#new-name") == proposed
    assert page.input_value("#new-about")
    assert len(visitor.names()) == 10


def test_answers_are_judged(visit: Any, url: str, folder: Path, tmp_path: Path) -> None:
    visitor = visit(url)
    page = visitor.open(CAPITAL)
    row = "#list .answer >> nth=1"
    page.click(f"{row} >> .is-accept")
    page.wait_for_selector(f"{row} >> .is-accept[aria-pressed=true]")
    page.click(f"{row} >> .is-reject")
    page.wait_for_selector(f"{row} >> .is-reject[aria-pressed=true]")
    visitor.open(CAPITAL)
    page.wait_for_selector(f"{row} >> .is-reject[aria-pressed=true]")
    page.wait_for_selector("#judged:has-text('0 accepted, 1 rejected')")
    with page.expect_download() as waited:
        page.click("#judged button:has-text('Save')")
    waited.value.save_as(tmp_path / "judgments.csv")
    ((asked, label),) = [
        ((row["head"], row["relation"]), row["label"])
        for row in csv.DictReader((tmp_path / "judgments.csv").read_text("utf-8").splitlines())
    ]
    assert (asked, label) == (("france", "capital"), "0")
    page.click(f"{row} >> .is-reject")
    page.wait_for_selector(f"{row} >> .is-reject[aria-pressed=false]")
    page.click(f"{row} >> .is-reject")
    page.click("#judged summary")
    page.click("#judged li .is-reject")  # also where an answer is none any more
    page.wait_for_selector(f"{row} >> .is-reject[aria-pressed=false]")
    assert [j.label for j in feedback.read_judgments(folder / feedback.FEEDBACK_FILE).judgments] == [
        1,
        0,
        None,
        0,
        None,
    ]


def test_a_token_is_asked_for_and_kept_in_the_tab(visit: Any, browser: Any, folder: Path) -> None:
    with served(service(folder, token="secret")) as at:
        visitor = visit(at)
        page = visitor.page
        page.goto(f"{at}/{CAPITAL}")
        for typed in ("wrong", "secret"):
            page.wait_for_selector("#token:not([hidden])")
            page.fill("#token-field", typed)
            page.keyboard.press("Enter")
            if typed == "wrong":
                page.wait_for_selector("#token-wrong:has-text('not it')")
        visitor.settled()
        assert len(visitor.names()) == 10
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        page.reload()
        visitor.settled()
        assert len(visitor.names()) == 10
        assert "secret" not in page.url
        # The browser itself reports each 401, and nothing else is wrong.
        assert all("401" in fault for fault in visitor.faults)
        visitor.faults.clear()


def test_what_goes_wrong_is_said(visit: Any, url: str) -> None:
    visitor = visit(url)
    page = visitor.open("?head=Frances&relation=capital")
    assert "no entity has" in page.inner_text("#error")
    assert page.inner_text(".hole").strip() == ""
    page.click("#error button:has-text('France')")
    page.wait_for_selector("#error", state="hidden")
    visitor.settled()
    assert "head=france" in page.url
    visitor.open("?head=nobody&relation=capital")
    assert "no entity has" in page.inner_text("#error")
    assert all("422" in fault for fault in visitor.faults)
    visitor.faults.clear()
    page.fill("[aria-label=Entity]", "France")
    page.wait_for_selector("#sentence [role=option]:visible")
    page.keyboard.press("Enter")
    page.wait_for_selector("#error", state="hidden")
    visitor.settled()
    assert len(visitor.names()) == 10


def test_it_says_when_the_run_is_gone(visit: Any, browser: Any, folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder, tmp_path / "toy")
    with served(service(run)) as at:
        visitor = visit(at)
        page = visitor.open(CAPITAL)
        assert page.locator("#list .judge").count() > 0
        assert page.locator(".old").count() == 0
        run.rename(tmp_path / "moved")
        visitor.open(CAPITAL)
        assert "The run's folder is gone since it was opened" in page.inner_text(".old")
        assert len(visitor.names()) == 10
        assert page.locator("#list .judge").count() == 0


def test_like_entities_are_named(visit: Any, browser: Any, toy_vector_run: Path) -> None:
    with served(service(toy_vector_run)) as at:
        page = visit(at).open(CAPITAL)
        page.wait_for_selector("p.similar a")
        names = page.locator("p.similar a").all_inner_texts()
    assert names
    assert "France" not in names


@pytest.mark.parametrize("width", [375, 1600])
def test_everybody_can_use_it(visit: Any, url: str, width: int) -> None:
    visitor = visit(url, viewport={"width": width, "height": 900})
    page = visitor.open()
    page.wait_for_selector(".fact")
    page.click(".fact .is-accept >> nth=0")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert visitor.violations() == [], scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    visitor.open(CAPITAL)
    page.click("#around summary")
    page.click("#known summary")
    page.click("text=What the model was told")
    assert visitor.violations() == []
    visitor.click("#list .answer:not(.is-chosen) a.compare >> nth=0")
    page.click("text=What if")
    page.click("#list .is-accept >> nth=2")
    page.click("[aria-label=Relation]")
    page.wait_for_selector("#sentence [role=option]:visible")
    page.keyboard.press("ArrowDown")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert visitor.violations() == [], scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_is_used_by_keyboard_alone(visit: Any, url: str) -> None:
    page = visit(url).open(CAPITAL)
    controls = {"Entity", "Relation", "min", "name", "skip", "Accept", "Compare"}
    for _ in range(60):
        page.keyboard.press("Tab")
        reached = page.evaluate(
            "(e => e.id || e.getAttribute('aria-label') || e.className)(document.activeElement)"
        )
        controls -= {reached, reached.partition(" ")[0]}
        if not controls:
            break
    assert controls == set()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_hostile_names_are_only_text(visit: Any, hostile: str) -> None:
    visitor = visit(hostile, viewport={"width": 375, "height": 800})
    page = visitor.page
    page.on("dialog", lambda dialog: visitor.faults.append(f"a dialog: {dialog.message}"))
    visitor.open()
    shown = set()
    for label in HOSTILE:
        visitor.go("?" + urlencode({"tail": label}))
        assert page.locator("#error").is_hidden(), (label, page.inner_text("#error"))
        shown.update(page.locator("#found .name").all_text_contents())
        assert page.locator("body img, body style, body b, body u, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, label
    assert shown == {name for name, _ in HOSTILE.values()}
    given = json.dumps(
        [[side, next(iter(RELATIONS)), label] for label in HOSTILE for side in ("head", "tail")]
    )
    visitor.go("?" + urlencode({"relation": "near\"'", "name": HOSTILE["markup"][0], "given": given}))
    assert page.locator("#given li").count() == 2 * len(HOSTILE)
    assert page.locator("body img, body style, body b, body u, main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    visitor.go("?" + urlencode({"tail": "quotes", "given": "[[1], {}, ["}))
    visitor.click("#list .answer:not(.is-chosen) a.compare >> nth=0")
    page.fill("[aria-label=Entity]", "<img")
    page.wait_for_selector("#sentence [role=option]:visible")
    assert "<img src=x onerror=alert(1)>" in page.inner_text("#sentence [role=option]:visible >> nth=0")
    assert visitor.violations() == []
    page.keyboard.press("Enter")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 1600, "height": 900})
    page.wait_for_selector(".drawing .center")
    visitor.settled()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1600
    assert visitor.violations() == []
    page.select_option("#type", label="<b>kind</b>")
    visitor.settled()
    assert visitor.names()


def test_the_pictures_of_the_docs(browser: Any) -> None:
    if not (run := os.environ.get("KGMLM_SCREENSHOTS")):
        pytest.skip("KGMLM_SCREENSHOTS names no run to draw")
    from PIL import Image

    IMAGES.mkdir(exist_ok=True)
    asked = "?head=Astrid_Lindgren&relation=worked_in"
    shots = {
        "explorer": ("", 1280, 860, "light"),
        "explorer-why": (f"{asked}&why=literature", 1280, 800, "light"),
        "explorer-dark": (f"{asked}&why=literature", 1280, 800, "dark"),
        "explorer-compare": (f"{asked}&why=literature&vs=painting", 1280, 800, "light"),
        "explorer-narrow": ("", 390, 844, "light"),
    }  # fmt: skip
    with served(service(run)) as at:
        for name, (query, width, height, scheme) in shots.items():
            size = {"width": width, "height": height}
            visitor = Visitor(browser, at, color_scheme=scheme, viewport=size)
            page = visitor.open(query)
            path = IMAGES / f"{name}.png"
            if not query:
                page.wait_for_selector(".fact")
            page.screenshot(path=path)
            if name == "explorer-why":
                page.locator("#around").screenshot(path=IMAGES / "explorer-around.png")
            visitor.close()
    for path in IMAGES.glob("explorer*.png"):
        Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
        assert path.stat().st_size < 150_000, path


def test_another_entity_is_added_to_the_run(visit: Any, browser: Any, folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder, tmp_path / "run")
    app = Reloading(service(run), lambda: service(run), lambda messages: None, seconds=0.1)
    given = '[["tail","located_in","europe"]]'
    asked = {"side": "head", "relation": "borders", "name": "Atlantis", "about": "an island", "given": given}
    with served(app) as at:  # type: ignore[arg-type]
        visitor = visit(at)
        page = visitor.open(f"?{urlencode(asked)}")
        visitor.click("#keep button")
        page.wait_for_selector("#keep a", timeout=180_000)  # the run is updated, and opened again
        visitor.click("#keep a")
        page.wait_for_selector("#around .of, #answers-title")
        assert "head=Atlantis" in page.url
        assert not page.locator("#keep button, #new:visible").count()
        messages = page.inner_text("#run")
    graph = kgmlm.open_run(run).graph
    assert graph.has_labels("Atlantis", "located_in", "europe")
    assert messages
