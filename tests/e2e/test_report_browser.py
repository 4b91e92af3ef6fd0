"""The report page in a browser: drawn, filtered, quiet, and alone."""

import numpy as np
import pytest
from kits.report import NASTY
from kits.report import log_of
from kits.report import pictures_of

from rs_keras.report import write_report


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a report; at the end, nothing was said and nothing asked for."""
    said, asked = [], []
    contexts = []

    def open_report(logs, thumbnails=None, **context):
        path = tmp_path / "report.html"
        write_report(logs, path, thumbnails=thumbnails)
        contexts.append(browser.new_context(**context))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector(".card")
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert said == []
    others = [url for url in asked if not url.startswith("data:")]
    assert len(others) == len(contexts), others


@pytest.fixture
def page(opened):
    log = log_of("one")
    other = log_of(
        "two", [(0, 1, 1, 1), (3, 2, 2, 1), (5, 0, 0, 1), (8, 1, 0, 1)]
    )
    return opened([log, other], pictures_of(log, ["zero", NASTY, "two"]))


def shown(page):
    return [
        int(text.removeprefix("no. "))
        for text in page.locator(".card .soft:last-child").all_text_contents()
    ]


def readings(page):
    return page.locator(
        "#readings tbody tr td:nth-child(2)"
    ).all_text_contents()


def test_curves_are_drawn(page):
    paths = page.locator("#plot path.curve")
    assert paths.count() == 2
    box = paths.first.bounding_box()
    assert box["width"] > 100 and box["height"] > 50


@pytest.mark.parametrize(
    "radius, expected",
    [
        ("0", ["50.0 %", "75.0 %"]),
        ("0.25", ["50.0 %", "75.0 %"]),
        ("0.250001", ["25.0 %", "75.0 %"]),
        ("0.9", ["25.0 %", "75.0 %"]),
        ("1", ["0.0 %", "75.0 %"]),
    ],
)
def test_any_radius_can_be_read_off(page, radius, expected):
    page.fill("#radius-number", radius)
    assert readings(page) == expected


def test_curves_are_read_off_with_the_pointer(page):
    box = page.locator("#plot .curve").nth(1).bounding_box()
    # The second curve is flat from 0 to 1, where it falls: half of it is 0.5.
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
    assert float(page.input_value("#radius-number")) == pytest.approx(
        0.5, abs=0.01
    )
    assert readings(page) == ["25.0 %", "75.0 %"]
    assert "stays inside" in page.text_content("#reading")


def test_curves_are_read_off_with_the_keyboard(page):
    page.focus("#radius")
    page.keyboard.press("End")
    assert readings(page) == ["0.0 %", "0.0 %"]
    page.keyboard.press("Home")
    assert readings(page) == ["50.0 %", "75.0 %"]


def test_gallery_is_sorted_by_radius(page):
    assert shown(page) == [0, 3, 5, 8]
    page.select_option("#filter-order", "smallest")
    assert shown(page) == [8, 5, 3, 0]
    page.select_option("#filter-order", "number")
    assert shown(page) == [0, 3, 5, 8]


@pytest.mark.parametrize(
    "outcome, expected",
    [
        ("all", [0, 3, 5, 8]),
        ("right", [0, 5]),
        ("wrong", [3]),
        ("abstained", [8]),
    ],
)
def test_a_report_filters_by_outcome(page, outcome, expected):
    page.check(f'input[value="{outcome}"]')
    assert shown(page) == expected
    assert page.text_content("#found") == f"{len(expected)} of 4 examples"


def test_filters_of_radius_label_and_log(page):
    page.fill("#filter-radius", "0.4")
    assert shown(page) == [0, 3]
    page.select_option("#filter-label", "2")
    assert shown(page) == [3]
    page.fill("#filter-radius", "0")
    page.select_option("#filter-label", "")
    page.select_option("#filter-log", "1")
    page.check('input[value="wrong"]')
    assert shown(page) == [8]


def test_filters_work_from_the_keyboard(page):
    page.focus('input[value="all"]')
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    assert shown(page) == [3]


def test_cards_say_prediction_label_and_radius(page):
    text = page.locator(".card", has_text="no. 3").inner_text()
    assert text.split("\n") == [
        "wrong",
        "radius 0.400",
        f"says {NASTY}",
        "is two",
        "no. 3",
    ]


def test_cards_show_their_pictures(page):
    # Picture i has the level i + 1; card 2 of the sorted ones is picture 2.
    page.wait_for_function(
        "document.querySelectorAll('.card canvas')[2]"
        ".getContext('2d').getImageData(3, 2, 1, 1).data[0] === 3"
    )


def test_labels_of_a_report_stay_text(page):
    assert page.evaluate("window.hit") is None
    assert page.locator(".card script").count() == 0


def test_page_refuses_requests_and_strange_scripts(browser, tmp_path):
    path = tmp_path / "report.html"
    write_report([log_of()], path)
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.evaluate("fetch('data:,x').then(() => false, () => true)")
    page.evaluate(
        """() => {
          const strange = document.createElement("script");
          strange.textContent = "window.hit = 1";
          document.body.append(strange);
        }"""
    )
    assert page.evaluate("window.hit") is None
    page.close()


def test_controls_have_names(page):
    # What a screen reader would call each control.
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, button")].filter(
          (node) => !(node.labels && node.labels.length)
            && !node.getAttribute("aria-label") && !node.textContent.trim()
        ).map((node) => node.id)"""
    )
    assert unnamed == []


def test_dark_narrow_and_print(opened):
    log = log_of("a name that is long enough to be a nuisance")
    page = opened(
        [log],
        color_scheme="dark",
        viewport={"width": 360, "height": 640},
    )
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 360
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(21, 24, 28)"
    page.emulate_media(media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert not page.is_visible("#filters")


def test_a_report_shows_ten_thousand_examples(opened):
    rng = np.random.default_rng(0)
    idx = np.arange(10_000)
    radius = np.round(rng.uniform(0, 1.2, idx.size), 6)
    predict = np.where(radius < 0.1, -1, idx % 10)
    rows = np.stack([idx, idx % 10, predict, radius * (predict >= 0)], 1)
    page = opened([log_of(rows=rows)])
    # On an idle machine a fifth of a second; other work may slow this one.
    assert page.evaluate("performance.now()") < 5_000
    assert page.evaluate("document.querySelectorAll('*').length") < 3_000
    assert page.text_content("#page") == "Page 1 of 167"
    page.click("#next")
    assert page.text_content("#page") == "Page 2 of 167"
    largest = np.argsort(-radius, kind="stable")
    assert shown(page) == largest[60:120].tolist()
