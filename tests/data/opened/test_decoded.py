"""Pictures decoded once for all processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from outsize.data.opened import decoded as module
from outsize.data.opened.decoded import DecodedPictures, can_share_decoded
from outsize.data.opened.readers import OpenScenes
from outsize.raster.reading import SceneInfo, decode_picture, describe

pytestmark = pytest.mark.skipif(not can_share_decoded(), reason="no memory to share without a file system")

PIXELS_BYTES = 10 * 12 * 3


@pytest.fixture
def pictures(tmp_path: Path) -> list[SceneInfo]:
    """Return four pictures in colours and one of class numbers."""
    rng = np.random.default_rng(0)
    for number in range(4):
        pixels = rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    Image.fromarray(rng.integers(0, 5, (10, 12), dtype=np.uint8)).save(tmp_path / "labels.png")
    return [describe(tmp_path / f"{name}.png") for name in (0, 1, 2, 3, "labels")]


def test_a_picture_is_decoded_once(pictures: list[SceneInfo], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def noting(info: SceneInfo) -> object:
        calls.append(info.path)
        return decode_picture(info)

    monkeypatch.setattr(module, "decode_picture", noting)
    held = DecodedPictures(pictures, 1 << 20)
    for _ in range(3):
        for info in pictures:
            np.testing.assert_array_equal(held.read(info), decode_picture(info))
    assert calls == [info.path for info in pictures]
    held.close()


def test_a_copy_elsewhere_sees_and_adds_to_the_same_memory(pictures: list[SceneInfo]) -> None:
    held = DecodedPictures(pictures, 1 << 20)
    held.read(pictures[0])
    program = (
        "import pickle, sys\n"
        "from pathlib import Path\n"
        "held, infos = pickle.loads(sys.stdin.buffer.read())\n"
        "Path(infos[0].path).unlink()\n"  # which nobody needs any more
        "print(int(held.read(infos[0]).sum()), int(held.read(infos[1]).sum()))\n"
    )
    wanted = [int(decode_picture(info).sum()) for info in pictures[:2]]
    given = pickle.dumps((held, pictures))
    done = subprocess.run([sys.executable, "-c", program], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert [int(each) for each in done.stdout.split()] == wanted
    Path(pictures[1].path).unlink()
    assert int(held.read(pictures[1]).sum()) == wanted[1]
    held.close()


def test_what_does_not_fit_has_no_place_and_is_read_all_the_same(pictures: list[SceneInfo]) -> None:
    held = DecodedPictures(pictures, 64 + 2 * 384)
    assert len(held) == 2
    assert held.size_bytes <= 64 + 2 * 384
    assert [held.holds(info) for info in pictures] == [True, True, False, False, False]
    np.testing.assert_array_equal(held.read(pictures[3]), decode_picture(pictures[3]))
    held.close()
    assert len(DecodedPictures(pictures, 100)) == 0


def test_sizes_of_one_picture_are_kept_apart(pictures: list[SceneInfo]) -> None:
    half = pictures[0].shrunk(2)
    held = DecodedPictures((pictures[0], half), 1 << 20)
    assert held.read(pictures[0]).shape == (3, 10, 12)
    assert held.read(half).shape == (3, 5, 6)
    held.close()


def test_open_scenes_take_pictures_from_there(pictures: list[SceneInfo]) -> None:
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    scenes = OpenScenes(0, DecodedPictures(pictures, 1 << 20))
    for info in (*pictures, *pictures):
        with scenes.lend(info) as reader:
            found = reader.read(info.window)
            np.testing.assert_array_equal(found.pixels, decode_picture(info))
            assert found.valid.all()
    again = pickle.loads(pickle.dumps(scenes))
    with again.lend(pictures[2]) as reader:
        np.testing.assert_array_equal(reader.read(pictures[2].window).pixels, decode_picture(pictures[2]))
    again.close()
    scenes.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= num_open
