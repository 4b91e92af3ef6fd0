import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from rs_keras import BallMemory

# A coarse grid of small images makes overlaps, repeats and touching balls
# common; the labels and radii owe nothing to the images: a certifier as
# inconsistent as can be.
PIXEL = st.integers(0, 12).map(lambda step: step / 12)
QUESTION = st.tuples(
    st.tuples(PIXEL, PIXEL),
    st.integers(-1, 2),
    st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 1.0]),
)
SEQUENCES = st.lists(QUESTION, min_size=1, max_size=25)


class Scripted:
    """A certifier that says what the script says next."""

    def __init__(self, script):
        self.script = iter(script)

    def __call__(self, image):
        _, label, radius = next(self.script)
        return label, radius


def picture(point):
    return np.array(point, np.float32).reshape(1, 2, 1)


def exact(a, b):
    """The distance of the stored float32 images, in more than float64."""
    difference = a.astype(np.longdouble) - b.astype(np.longdouble)
    return np.sqrt((difference**2).sum())


def run(script, strict):
    memory = BallMemory(Scripted(script), strict=strict)
    images = [picture(point) for point, _, _ in script]
    return memory, images, [memory.query(image) for image in images]


@given(SEQUENCES, st.booleans())
@settings(max_examples=300, deadline=None)
def test_balls_of_different_classes_never_meet(script, strict):
    memory, images, answers = run(script, strict)
    kept = [
        (image, label, radius)
        for image, (label, radius) in zip(images, answers, strict=True)
        if label >= 0 or strict
    ]
    # Append-only: what was answered is what is stored, in this order.
    assert [k[1] for k in kept] == memory.labels.tolist()
    assert [k[2] for k in kept] == memory.radii.tolist()
    for i, (x, c, r) in enumerate(kept):
        for y, d, s in kept[:i]:
            if c != d:
                # Balls of different classes do not meet.
                assert exact(x, y) >= np.longdouble(r) + np.longdouble(s)
    for later, image in enumerate(images):
        for earlier in range(later):
            label, radius = answers[earlier]
            apart = exact(image, images[earlier])
            if label >= 0 and apart < radius:
                # The promise: constant inside a ball handed out before.
                assert answers[later][0] == label
            if (label >= 0 or strict) and apart == 0:
                # Asked again, a stored image gets its class again.
                assert answers[later][0] == label
    # Never more than the own radius, or what was left in a ball before.
    for number, (label, radius) in enumerate(answers):
        own = script[number][2] if script[number][1] == label else 0.0
        left = [
            answers[j][1] - exact(images[number], images[j])
            for j in range(number)
            if answers[j][0] == label
        ]
        assert radius <= max([own, 0.0, *left])


def test_ball_memory_by_hand():
    script = [((0.0, 0.0), 0, 0.5), ((0.8, 0.0), 1, 0.5), ((0.4, 0), 1, 0.3)]
    _, _, answers = run(script, strict=False)
    assert answers[0] == (0, 0.5)
    # 0.8 away from a ball of radius 0.5: 0.3 are left.
    assert answers[1] == (1, pytest.approx(0.3, abs=1e-6))
    assert answers[1][1] <= 0.8 - 0.5 + 1e-7
    # Inside the first ball: its class, and the 0.1 that are left in it.
    assert answers[2] == (0, pytest.approx(0.1, abs=1e-6))


def test_a_strict_memory_keeps_abstentions():
    script = [((0.0, 0.0), -1, 0.0), ((0.25, 0.0), 1, 0.5)]
    _, _, loose = run(script, strict=False)
    _, _, strict = run(script, strict=True)
    assert loose[1] == (1, 0.5)
    assert strict[1] == (1, pytest.approx(0.25))


def test_a_memory_depends_on_the_order_of_questions():
    ahead = [((0.0, 0.0), 0, 0.5), ((0.25, 0.0), 1, 0.5)]
    _, _, there = run(ahead, strict=False)
    _, _, back = run(ahead[::-1], strict=False)
    assert [a[0] for a in there] == [0, 0]
    assert [a[0] for a in back] == [1, 1]


def answer_of_all_balls(images, labels, radii, probe, own):
    """What the memory promises, from the distances to all of its images."""
    label, radius = own
    apart = np.array([exact(x, probe) for x in images]).astype(float)
    inside = apart < radii
    room = 0.0
    if inside.any():
        room = (radii - apart)[inside].max()
        if label != labels[inside][0]:
            return labels[inside][0], room
    free = max(0.0, (apart - radii)[labels != label].min(initial=np.inf))
    return label, max(room, min(radius, free))


def test_pruning_loses_no_ball():
    """Against all distances: random pictures of several shapes."""
    rng = np.random.default_rng(0)
    for shape in [(4, 4, 1), (9, 13, 3), (32, 32, 3)]:
        images = rng.uniform(size=(200, *shape)).astype(np.float32)
        images = images[:1] + (images - images[:1]) * np.float32(0.1)
        own = [(k % 3, 0.3 + 0.01 * (k % 7)) for k in range(200)]
        own += [(k % 3, r) for k in range(3) for r in (0.0, 0.5, 3.0)]
        script = iter(own)
        memory = BallMemory(lambda image, s=script: next(s))
        # The last ones lie near the eighth.
        steps = np.float32(0.01) * np.arange(1, 10, dtype=np.float32)
        near = [np.clip(images[7] + step, 0, 1) for step in steps]
        asked = [*images, *near]
        for count, image in enumerate(asked):
            labels, radii = memory.labels, memory.radii
            label, radius = memory.query(image)
            if count % 20 == 19 or count >= 200:
                wanted = answer_of_all_balls(
                    asked[:count], labels, radii, image, own[count]
                )
                assert (label, radius) == (wanted[0], pytest.approx(wanted[1]))


@pytest.mark.parametrize("strict", [False, True])
def test_a_memory_is_saved_and_loaded(tmp_path, strict):
    rng = np.random.default_rng(1)
    script = [
        (tuple(rng.uniform(size=2)), int(label), radius)
        for label, radius in zip(
            rng.integers(-1, 3, 40), rng.uniform(0, 0.3, 40), strict=True
        )
    ]
    memory, images, _ = run(script, strict)
    memory.save(tmp_path / "balls.npz")
    loaded = BallMemory.load(tmp_path / "balls.npz", lambda image: (1, 0.2))
    memory.certify = loaded.certify
    assert loaded.strict == strict
    np.testing.assert_array_equal(loaded.labels, memory.labels)
    np.testing.assert_array_equal(loaded.radii, memory.radii)
    for image in images:
        assert loaded.query(image) == memory.query(image)
    assert [p.name for p in tmp_path.iterdir()] == ["balls.npz"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    memory, _, _ = run([((0.0, 0.0), 0, 0.5)], False)
    path = tmp_path / "balls.npz"
    memory.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(np, "savez", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        memory.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["balls.npz"]


def test_what_is_no_memory(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"not this")
    np.savez(tmp_path / "b.npz", images=np.zeros(3))
    for name in "ab":
        with pytest.raises(ValueError, match="not a ball memory"):
            BallMemory.load(tmp_path / f"{name}.npz", lambda image: (0, 0))
    with pytest.raises(FileNotFoundError):
        BallMemory.load(tmp_path / "c.npz", lambda image: (0, 0))


def test_files_cut_short_or_damaged(tmp_path):
    memory, _, _ = run([((0.0, 0.0), 0, 0.5), ((1.0, 0.0), 1, 0.5)], False)
    path = tmp_path / "balls.npz"
    memory.save(path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="not a ball memory"):
            BallMemory.load(path, lambda image: (0, 0))
    for at in range(0, len(whole), 11):
        path.write_bytes(
            whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]
        )
        try:
            found = BallMemory.load(path, lambda image: (0, 0))
        except ValueError as error:
            assert "not a ball memory" in str(error)
        else:
            # A byte that means nothing: a date, say.
            np.testing.assert_array_equal(found.labels, memory.labels)
            np.testing.assert_array_equal(found.radii, memory.radii)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("format", 1, "format 1, not 2"),
        ("radii", [np.nan], "finite radius"),
        ("radii", [-0.5], "finite radius"),
        ("radii", [0.5, 0.5], "longer"),
        ("labels", [-2], "label >= -1"),
        ("images_0", np.full([1, 2], 0.5), "float64"),
        ("images_0", np.full([1, 2], np.nan, np.float32), "finite"),
        ("images_0", np.full([1, 3], 0.5, np.float32), "reshape"),
    ],
    ids=str,
)
def test_balls_that_none_can_have_saved(tmp_path, name, value, said):
    memory, _, _ = run([((0.0, 0.0), 0, 0.5)], False)
    path = tmp_path / "balls.npz"
    memory.save(path)
    with np.load(path) as file:
        arrays = {**file, name: np.asarray(value)}
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=f"not a ball memory.*{said}"):
        BallMemory.load(path, lambda image: (0, 0))


def test_many_blocks_are_saved(tmp_path):
    rng = np.random.default_rng(2)
    images = rng.uniform(size=(5_000, 1, 2, 1)).astype(np.float32)
    memory = BallMemory(lambda image: (0, 0.01))
    for image in images:
        memory.query(image)
    memory.save(tmp_path / "balls.npz")
    loaded = BallMemory.load(tmp_path / "balls.npz", lambda image: (1, 0.5))
    # Certified as class 1 now, but inside the balls of class 0.
    assert len(loaded) == 5_000
    assert {loaded.query(image)[0] for image in images[::10]} == {0}


@pytest.mark.parametrize(
    "said", [(-2, 0.1), (0, -0.1), (0, float("nan")), (0, float("inf"))]
)
def test_a_memory_refuses_bad_certificates(said):
    with pytest.raises(ValueError, match="`certify` must"):
        BallMemory(lambda image: said).query(np.zeros([1, 2, 1]))


def test_a_memory_refuses_bad_images():
    memory = BallMemory(lambda image: (0, 0.1))
    memory.query(np.zeros([1, 2, 1]))
    for bad in (np.zeros([2, 2, 1]), np.full([1, 2, 1], 2.0), np.zeros([2])):
        with pytest.raises(ValueError, match="`images` must"):
            memory.query(bad)
