import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from skimage.measure import label, regionprops_table

from outsize.raster.vectors import outlines
from outsize.raster.vectors.outlines import trace
from outsize.threads import Threads

MAPS = arrays.arrays(
    np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=14), elements=st.integers(0, 2)
)


def outline(classes, strip_rows, skip=frozenset(), confidence=None, num_threads=1):
    read_confidence = None if confidence is None else lambda first, end: confidence[first:end]
    return trace(
        lambda first, end: classes[first:end],
        read_confidence,
        classes.shape,
        skip=skip,
        strip_rows=strip_rows,
        num_threads=num_threads,
    )


def shapes_of(found):
    points = np.column_stack([found.col, found.row]).astype(float)
    return shapely.from_ragged_array(
        shapely.GeometryType.POLYGON, points, (found.ring_start, found.polygon_start)
    )


def check(classes, found, skip=frozenset(), confidence=None):
    """Compare with a labelling of the whole map, pixel by pixel."""
    labels = label(classes.astype(int) + 1, connectivity=1, background=0)
    kept = [one for one in np.unique(labels) if int(classes[labels == one][0]) not in skip]
    shapes = shapes_of(found)
    assert len(shapes) == len(kept)
    assert shapely.is_valid(shapes).all(), shapely.is_valid_reason(shapes)
    np.testing.assert_array_equal(shapely.area(shapes), found.num_px)
    row, col = np.indices(classes.shape)
    centres = shapely.points(col + 0.5, row + 0.5)
    for index, shape in enumerate(shapes):
        inside = shapely.contains(shape, centres)
        one = labels[inside][0]
        np.testing.assert_array_equal(inside, labels == one)
        assert found.value[index] == classes[inside][0]
        if confidence is not None:
            assert found.mean[index] == pytest.approx(confidence[inside].mean())


@settings(max_examples=150, deadline=None)
@given(
    classes=MAPS,
    strip_rows=st.integers(1, 14),
    skip=st.sampled_from([frozenset(), frozenset({1}), frozenset({0, 2})]),
)
def test_every_small_map_agrees_with_a_plain_labelling(classes, strip_rows, skip):
    confidence = (classes * 50 + np.arange(classes.size).reshape(classes.shape) % 7).astype(np.uint8)
    check(classes, outline(classes, strip_rows, skip, confidence), skip, confidence)


@pytest.mark.parametrize(
    "text", ["101 010 101", "1110 1001 1001 0111", "11111 10101 11011 10101 11111", "110 101 011"]
)
def test_regions_that_touch_at_points(text):
    classes = np.array([[int(one) for one in row] for row in text.split()], np.uint8)
    check(classes, outline(classes, 2))


def test_outlines_do_not_depend_on_strips_or_threads():
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(0, 4, (20, 20)), np.ones((13, 11), int)).astype(np.uint8)
    speckle = rng.random(coarse.shape) < 0.05
    classes = np.where(speckle, rng.integers(0, 4, coarse.shape), coarse).astype(np.uint8)
    confidence = rng.random(classes.shape, dtype=np.float32)
    whole = outline(classes, classes.shape[0], frozenset({3}), confidence)
    for strip_rows, num_threads in [(1, 1), (7, 2), (64, 3)]:
        found = outline(classes, strip_rows, frozenset({3}), confidence, num_threads)
        for name in ("value", "num_px", "area", "polygon_start", "ring_start", "row", "col"):
            np.testing.assert_array_equal(getattr(found, name), getattr(whole, name), err_msg=name)
        np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-12)


def test_holes_are_kept_and_straight_borders_have_no_points():
    classes = np.zeros((60, 60), np.uint8)
    classes[10:50, 10:50] = 1
    classes[20:40, 20:40] = 2
    found = outline(classes, 7)
    shapes = shapes_of(found)
    assert shapely.get_num_interior_rings(shapes).tolist() == [1, 1, 0]
    assert shapely.get_num_coordinates(shapes).tolist() == [10, 10, 5]
    assert found.num_px.tolist() == [3600 - 1600, 1600 - 400, 400]


def test_maps_wider_than_16_bits():
    classes = np.zeros((2, 70_000), np.uint8)
    classes[:, 66_000:66_010] = 1
    classes[1, 464] = 2  # 66,000 modulo 2**16
    found = outline(classes, 1)
    assert sorted(found.num_px.tolist()) == [1, 20, 8_000 - 20, 2 * 70_000 - 8_001] or len(found.value) == 4
    assert shapely.is_valid(shapes_of(found)).all()


def test_map_of_nothing_but_skipped_pixels():
    found = outline(np.full((5, 5), 255, np.uint8), 2, frozenset({255}))
    assert len(found.value) == 0
    assert found.polygon_start.tolist() == [0]


def test_region_counts_agree_on_a_larger_map():
    rng = np.random.default_rng(1)
    classes = (rng.random((300, 300)) > 0.45).astype(np.uint8)
    labels = label(classes.astype(int) + 1, connectivity=1, background=0)
    sizes = regionprops_table(labels, properties=("area",))["area"]
    found = outline(classes, 37)
    assert sorted(found.num_px.tolist()) == sorted(sizes.astype(int).tolist())
    assert shapely.is_valid(shapes_of(found)).all()


def test_what_threads_need_is_loaded_before_they_begin(monkeypatch):
    """An import without memory can block a thread for good."""
    order = []
    pools = {
        "load_join": lambda: order.append("load"),
        "Threads": lambda *given: order.append("pool") or Threads(*given),
    }
    for name, stand_in in pools.items():
        monkeypatch.setattr(outlines, name, stand_in)
    outline(np.zeros((4, 4), np.uint8), strip_rows=2)
    assert order == ["load", "pool"]
