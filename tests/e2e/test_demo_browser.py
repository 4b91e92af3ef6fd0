"""The demonstration page in a browser: drawn on, voted on, attacked, quiet."""

import base64
import io
import json
import re

import numpy as np
import pytest
from kits.demo import SHAPE
from kits.demo import SIGMA
from kits.demo import demo_server
from kits.demo import from_text
from PIL import Image
from scipy import stats

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed"
)
# Other work may slow this machine; what is waited for ends the wait.
PATIENCE = 60_000
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def address():
    server, _ = demo_server()
    with server:
        yield server.address


@pytest.fixture
def opened(browser, address):
    """Opens the page; at the end, nothing was said and nobody else asked."""
    said, asked, contexts = [], [], []

    def open_page(**settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        return page

    open_page.said = said
    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    others = [u for u in asked if not u.startswith((address, "data:"))]
    assert others == []


@pytest.fixture
def page(opened):
    return opened(viewport={"width": 1400, "height": 900})


def draw(page, points):
    """Draws a line through points of the unit square."""
    box = page.locator("#pad").bounding_box()
    places = [
        (box["x"] + x * box["width"], box["y"] + y * box["height"])
        for x, y in points
    ]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=5)
    page.mouse.up()


def seven(page):
    draw(page, [(0.3, 0.2), (0.6, 0.2), (0.45, 0.6)])


def certify(page, n="1000"):
    page.select_option("#draws", n)
    page.click("#certify")
    finished(page)


def finished(page):
    page.wait_for_selector("body:not([data-busy])")
    page.wait_for_selector("#result:not(:empty)")


def counts_of(page, bars="#bars"):
    texts = page.locator(f"{bars} .count").all_text_contents()
    return np.array([int(text.replace(",", "")) for text in texts])


def canvas(page, selector):
    """The grey values of a canvas, read back in the browser."""
    width, height, grey = page.locator(selector).evaluate(
        """(node) => [node.width, node.height, [...node.getContext("2d")
          .getImageData(0, 0, node.width, node.height).data]
          .filter((_, i) => i % 4 === 0)]"""
    )
    return np.array(grey).reshape(height, width)


def drop(page, name, content, kind):
    """Drops a file on the page."""
    files = page.evaluate_handle(
        """([name, text, type]) => {
          const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
          const found = new DataTransfer();
          found.items.add(new File([bytes], name, { type }));
          return found;
        }""",
        [name, base64.b64encode(content).decode(), kind],
    )
    page.dispatch_event("body", "drop", {"dataTransfer": files})


def png(grey):
    file = io.BytesIO()
    Image.fromarray(grey.astype("uint8")).save(file, "PNG")
    return file.getvalue()


def test_from_a_drawing_to_a_broken_answer(page):
    seven(page)
    certify(page)
    counts = counts_of(page)
    assert counts.sum() == 1_000
    # Bars are as long as their counts say, of tracks of one length.
    page.wait_for_timeout(300)
    tracks, bars = (
        page.locator(f"#bars {name}").evaluate_all(
            "(all) => all.map((one) => one.getBoundingClientRect().width)"
        )
        for name in (".track", ".bar")
    )
    assert tracks == [tracks[0]] * 10
    assert bars == pytest.approx(tracks[0] * counts / 1_000, abs=0.1)
    # The numbers are SciPy's: a tenth of alpha = 0.001 for the second class.
    second, first = np.sort(counts)[-2:]
    lower = stats.beta.ppf(0.0009, first, 1_000 - first + 1)
    upper = stats.beta.ppf(0.9999, second + 1, 1_000 - second)
    upper = min(upper, 1 - lower)
    radius = SIGMA / 2 * (stats.norm.ppf(lower) - stats.norm.ppf(upper))
    down = f"{np.floor(1_000 * radius) / 1_000:.3f}"
    assert page.text_content("#radius") == down
    assert float(page.text_content("#lower")) == np.floor(1e4 * lower) / 1e4
    label = int(counts.argmax())
    assert page.text_content("#result strong") == (
        f"{label}, certified within {down}"
    )
    assert f"smaller than {down} in L2" in page.text_content("#result span")
    assert "for each image by itself" in page.text_content("#statement").lower()
    check_slider(page, radius, label)
    check_ball(page, radius)


def check_slider(page, radius, label):
    page.wait_for_selector("#strip .now", state="attached")
    assert page.text_content("#verdict").startswith("The image itself: ")
    page.focus("#distance")
    steps = int(page.get_attribute("#distance", "max"))
    for step in range(1, steps + 1):
        page.keyboard.press("ArrowRight")
        far = float(page.text_content("#far"))
        assert far == pytest.approx(2.5 * radius * step / steps, abs=1e-3)
        verdict = page.text_content("#verdict")
        inside = "Inside the certified radius: cannot change"
        outside = "Outside the certified radius: no promise."
        assert verdict.startswith(inside if far < radius else outside)
        counts = counts_of(page, "#few")
        assert counts.sum() == 500
        if far < radius / 2:
            assert verdict == (
                f"{inside}, and did not: {counts[label]} of 500 votes for "
                f"{label}."
            )
    assert canvas(page, "#perturbed").shape == SHAPE[:2]
    # What was changed is shown around grey, and something was.
    change = canvas(page, "#change").astype(int) - 128
    assert np.abs(change).max() >= 127


def check_ball(page, radius):
    """Every image lies as far from the middle as it says, on one scale."""
    page.wait_for_timeout(300)
    disc = page.locator(".disc").bounding_box()
    middle = disc["x"] + disc["width"] / 2, disc["y"] + disc["height"] / 2
    points = page.locator(".point").all()
    assert len(points) == 24
    for node in points:
        box = node.bounding_box()
        away = np.hypot(
            box["x"] + box["width"] / 2 - middle[0],
            box["y"] + box["height"] / 2 - middle[1],
        )
        distance = float(node.get_attribute("data-distance"))
        assert away / (disc["width"] / 2) == pytest.approx(
            distance / radius, abs=0.02
        )
        inside = "inside" in node.get_attribute("class").split()
        assert inside == (distance < radius)
    points[0].focus()
    page.keyboard.press("ArrowRight")
    assert page.text_content("#picked") == page.locator(
        ".point:focus"
    ).get_attribute("aria-label")


@pytest.mark.parametrize("size, x, y", [(0.5, 0.1, 0.1), (0.2, 0.7, 0.6)])
def test_drawings_are_scaled_and_centred_as_in_mnist(page, size, x, y):
    draw(page, [(x, y), (x + size / 4, y), (x + size / 4, y + size)])
    seen = canvas(page, "#seen").astype(float)
    assert seen.shape == (28, 28)
    rows, columns = np.nonzero(seen > 40)
    assert 19 <= np.ptp(rows) + 1 <= 22
    assert np.ptp(columns) < np.ptp(rows)
    places = np.arange(28) + 0.5
    assert places @ seen.sum(1) / seen.sum() == pytest.approx(14, abs=0.3)
    assert places @ seen.sum(0) / seen.sum() == pytest.approx(14, abs=0.3)


def test_a_picture_of_the_right_size_is_taken_as_it_is(page):
    grey = np.random.default_rng(0).integers(0, 256, size=(28, 28))
    page.select_option("#draws", "1000")
    with page.expect_request("**/certify") as asked:
        drop(page, "noise.png", png(grey), "image/png")
    finished(page)
    assert (canvas(page, "#seen") == grey).all()
    sent = from_text(json.loads(asked.value.post_data)["pixels"])
    np.testing.assert_allclose(sent[..., 0], grey / 255, atol=1e-7)
    assert page.text_content("#hint") == "Taken pixel by pixel."


def test_a_dark_digit_on_paper_is_inverted(page):
    paper = np.full((300, 200), 250)
    paper[100:200, 90:110] = 10
    page.select_option("#draws", "1000")
    drop(page, "one.png", png(paper), "image/png")
    finished(page)
    seen = canvas(page, "#seen")
    assert seen[0, 0] < 10 and seen[14, 14] > 200
    assert "Inverted" in page.text_content("#hint")


@pytest.mark.parametrize(
    "act",
    [
        lambda page: page.click("#clear"),
        lambda page: page.click('button[aria-label="Example: 3"]'),
        seven,
    ],
    ids=["cleared", "an example", "drawn"],
)
def test_what_was_done_to_a_file_is_not_said_of_another_image(page, act):
    usual = page.text_content("#hint")
    answered(page, BEGIN, ABSTAINED)
    drop(page, "paper.png", png(np.full((99, 99), 250)), "image/png")
    finished(page)
    assert "Inverted" in page.text_content("#hint")
    act(page)
    assert page.text_content("#hint") == usual


def test_files_that_are_none(page):
    drop(page, "notes.txt", b"not an image", "text/plain")
    page.wait_for_selector("#trouble:not(:empty)")
    assert page.text_content("#trouble") == (
        "notes.txt is not an image that this browser can read."
    )
    page.evaluate(
        """() => {
          const files = new DataTransfer();
          files.items.add(new File([new Uint8Array(21e6)], "big.png"));
          document.body.dispatchEvent(new DragEvent("drop", {
            bubbles: true, dataTransfer: files }));
        }"""
    )
    playwright.expect(page.locator("#trouble")).to_have_text(
        "big.png is too large: 21 MB. Images may have 20 MB."
    )


def test_no_older_result_stands_beside_a_bad_file(page):
    answered(page, BEGIN, ABSTAINED)
    seven(page)
    certify(page)
    drop(page, "notes.txt", b"not an image", "text/plain")
    page.wait_for_selector("#trouble:not(:empty)")
    assert page.text_content("#result") == ""
    assert counts_of(page).sum() == 0
    assert not page.is_visible("#ball-section")
    assert not page.is_visible("#attack-section")
    # The drawing is not lost, nor what may be done with it.
    assert canvas(page, "#seen").max() > 200
    certify(page)
    assert page.text_content("#trouble") == ""


def test_a_complaint_ends_before_the_next_file_is_read(page):
    page.click("#certify")
    assert page.text_content("#trouble") != ""
    # A browser that is never done with decoding.
    page.evaluate(
        "() => { window.createImageBitmap = () => new Promise(() => 0); }"
    )
    drop(page, "one.png", png(np.zeros(SHAPE[:2])), "image/png")
    assert page.text_content("#trouble") == ""


def test_only_what_browsers_decode_is_offered(page):
    kinds = page.get_attribute("#file", "accept").split(",")
    names = {kind.removeprefix("image/") for kind in kinds}
    assert names == {"png", "jpeg", "gif", "webp", "bmp"}
    for name in sorted(names):
        file = io.BytesIO()
        Image.new("L", (28, 28), 200).save(file, name)
        found = page.evaluate(
            """async ([text, type]) => {
              const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
              const blob = new Blob([bytes], { type });
              return (await createImageBitmap(blob)).width;
            }""",
            [base64.b64encode(file.getvalue()).decode(), f"image/{name}"],
        )
        assert found == 28


def test_nothing_is_certified_of_nothing(page):
    page.click("#certify")
    assert page.text_content("#trouble") == (
        "Draw something first, or choose an example."
    )
    assert not page.is_visible("#ball-section")


def test_another_stroke_ends_the_vote(page):
    seven(page)
    page.select_option("#draws", "100000")
    page.click("#certify")
    playwright.expect(page.locator("#lower")).to_contain_text(
        "0.", timeout=PATIENCE
    )
    with page.expect_event("requestfailed") as ended:
        draw(page, [(0.5, 0.2), (0.5, 0.8)])
    assert ended.value.url.endswith("/certify")
    page.wait_for_timeout(300)
    assert counts_of(page).sum() == 0
    assert page.get_attribute("body", "data-busy") is None
    assert page.text_content("#result") == ""


def test_examples_work_from_the_keyboard(page):
    page.select_option("#draws", "1000")
    page.focus('button[aria-label="Example: 3"]')
    page.keyboard.press("Enter")
    finished(page)
    assert counts_of(page).sum() == 1_000
    page.click("#clear")
    assert counts_of(page).sum() == 0
    assert canvas(page, "#seen").max() == 0
    assert not page.is_visible("#attack-section")


@pytest.mark.parametrize("wide", [400, 1400])
def test_dark_and_narrow(opened, wide):
    page = opened(
        color_scheme="dark",
        reduced_motion="reduce",
        viewport={"width": wide, "height": 800},
    )
    assert page.evaluate(WIDTH) <= wide
    seven(page)
    certify(page)
    page.wait_for_selector("#attack-section:visible")
    assert page.evaluate(WIDTH) <= wide
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(21, 24, 28)"
    bar = page.locator("#bars .bar").first
    assert bar.evaluate("(n) => getComputedStyle(n).transitionDuration") == "0s"


def test_touch_draws(opened):
    page = opened(has_touch=True, viewport={"width": 400, "height": 800})
    box = page.locator("#pad").bounding_box()
    page.touchscreen.tap(box["x"] + 90, box["y"] + 90)
    assert canvas(page, "#seen").max() > 200


def test_a_press_draws_a_round_dot(page):
    draw(page, [(0.5, 0.5)])
    ink = canvas(page, "#pad") > 127
    down, across = np.nonzero(ink)
    # The middle, and the brush's width both ways.
    assert np.ptp(down) == pytest.approx(np.ptp(across), abs=2)
    assert down.mean() == pytest.approx(ink.shape[0] / 2, abs=2)
    assert ink.mean() == pytest.approx(np.pi * 0.041**2, rel=0.2)


def test_controls_have_names(page):
    seven(page)
    certify(page)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button")]
          .filter((node) => !(node.labels && node.labels.length)
            && !node.getAttribute("aria-label") && !node.textContent.trim())
          .map((node) => node.outerHTML)"""
    )
    assert unnamed == []


def test_strange_scripts_do_not_run(browser, address):
    page = browser.new_page()
    page.goto(address)
    page.evaluate(
        """() => {
          const strange = document.createElement("script");
          strange.textContent = "window.hit = 1";
          document.body.append(strange);
        }"""
    )
    assert page.evaluate("() => window.hit") is None
    refused = "() => fetch('http://127.0.0.1:1/').then(() => 0, () => 1)"
    assert page.evaluate(refused) == 1
    page.close()


BEGIN = {"stage": "begin", "n0": 100, "n": 1000}
ABSTAINED = {
    "stage": "certificate",
    "drawn": 1000,
    "counts": [500, 480, *[0] * 7, 20],
    "chosen": 0,
    "label": -1,
    "radius": 0.0,
    "radius_text": "0.000",
    "p_lower": 0.4518,
    "p_lower_text": "0.4518",
    "sentence": "abstains: no class wins with 99.9% confidence",
    "statement": "For each image by itself.",
    "seed": ["1", "2"],
}


def answered(page, *lines):
    """Answers the page in the server's place."""
    body = "".join(json.dumps(line) + "\n" for line in lines)
    page.route(
        "**/certify",
        lambda route: route.fulfill(
            content_type="application/x-ndjson", body=body
        ),
    )


def many_classes(page, count):
    """As if the model had so many; the server itself has 10."""

    def renamed(route):
        names = [f"kind {label}" for label in range(count)]
        about = {**route.fetch().json(), "names": names}
        route.fulfill(json=about)

    page.route("**/about.json", renamed)
    page.route(
        "**/explore",
        lambda route: route.fulfill(
            body='{"stage": "begin", "n": 500, "scale": 0.25, "reach": 0.5, '
            '"stops": 1}\n{"stage": "end"}\n'
        ),
    )
    page.reload()
    page.wait_for_selector("body[data-ready]")


def test_of_many_classes_the_first_ten_have_bars(page):
    many_classes(page, 100)
    assert page.locator("#bars .row").count() == 11
    # 99 is the winner though it has few; of two equals the earlier is shown.
    counts = np.zeros(100, int)
    counts[90:99] = np.arange(90, 99)
    counts[[10, 20, 99]] = 60, 60, 34
    draws = int(counts.sum())
    told = {"counts": counts.tolist(), "drawn": draws, "chosen": 99}
    answered(page, {**BEGIN, "n": draws}, {**ABSTAINED, **told})
    seven(page)
    certify(page)
    page.wait_for_selector("#attack-section:visible")
    names = page.locator("#bars .name").all_text_contents()
    assert names == [
        "kind 99",
        *(f"kind {label}" for label in range(98, 89, -1)),
        "90 others",
    ]
    assert counts_of(page).tolist() == [34, *range(98, 89, -1), 120]
    assert page.locator("#bars .winner .name").all_text_contents() == [
        "kind 99"
    ]
    # Nobody wins the few: 10 is there, before 20.
    names = page.locator("#few .name").all_text_contents()
    assert names[-2:] == ["kind 10", "90 others"]
    assert counts_of(page, "#few")[-2:].tolist() == [60, 94]
    tall = page.evaluate("document.documentElement.scrollHeight")
    assert tall < 2_000


def test_eleven_classes_need_no_others(page):
    many_classes(page, 11)
    names = page.locator("#bars .name").all_text_contents()
    assert names == [f"kind {label}" for label in range(11)]


def test_abstaining_is_told(page):
    answered(page, BEGIN, ABSTAINED)
    seven(page)
    certify(page)
    assert page.text_content("#result strong") == "No answer"
    assert page.text_content("#result span") == (
        "Abstains: no class wins with 99.9% confidence."
    )
    assert page.text_content("#radius") == "none"
    assert page.locator(".disc").count() == 0
    assert "no certified ball" in page.text_content("#ball-words")
    page.focus("#distance")
    page.keyboard.press("ArrowRight")
    assert page.text_content("#verdict").startswith(
        "Nothing was certified: no promise."
    )


@pytest.mark.parametrize(
    "lines, words",
    [
        ([BEGIN], "The connection to the server was lost."),
        ([BEGIN, {"error": "The server cannot: away"}], "cannot: away"),
    ],
    ids=["cut", "failed"],
)
def test_answers_that_end_early(page, lines, words):
    answered(page, *lines)
    seven(page)
    page.click("#certify")
    page.wait_for_selector("#trouble:not(:empty)")
    assert words in page.text_content("#trouble")
    assert page.text_content("#result") == ""
    assert page.get_attribute("body", "data-busy") is None


def test_a_busy_server_is_told(opened):
    page = opened()
    page.route(
        "**/certify",
        lambda route: route.fulfill(
            status=503, json={"error": "The server is busy."}
        ),
    )
    seven(page)
    page.click("#certify")
    page.wait_for_selector("#trouble:not(:empty)")
    assert page.text_content("#trouble") == "The server is busy."
    # The browser itself notes the status.
    (note,) = opened.said
    assert re.search("503", note)
    opened.said.clear()
