"""Small pictures with objects, drawn for tests in every layout that is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from PIL import Image

from outsize.job import ClassSpec, DataSection
from outsize.tiles.window import Window

SIZE = (48, 64)
PLACES = (Window(4, 5, 10, 12), Window(20, 30, 8, 8), Window(38, 50, 10, 14))
NAMES = ("side-road", "house", "house")


def photo(seed: int, size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(1, 255, (*size, 3), dtype=np.uint8)


def mask_of(window: Window, size: tuple[int, int] = SIZE) -> NDArray[np.bool_]:
    mask = np.zeros(size, np.bool_)
    mask[window.slices] = True
    return mask


def section(*names: str, **keys: Any) -> DataSection:
    classes = tuple(ClassSpec(name=name, value=number) for number, name in enumerate(names, start=1))
    return DataSection(objects=True, classes=classes, **keys)


def draw_masks(root: Path, num: int = 4) -> None:
    """Draw the layout of folders: a picture in each, and a mask for each object."""
    for number in range(num):
        name = f"a-{number}"
        (root / name).mkdir(parents=True)
        Image.fromarray(photo(number)).save(root / name / f"{name}.jpg")
        for index, (place, kind) in enumerate(zip(PLACES, NAMES, strict=True), start=1):
            mask = np.where(mask_of(place), 255 if index == 1 else index, 0).astype(np.uint8)
            Image.fromarray(mask).save(root / name / f"{name}-{kind}-{index}.png")


def draw_ids(root: Path, num: int = 4) -> None:
    """Draw pictures, and 16-bit pictures of ids beside them; an id may be in two parts."""
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for number in range(num):
        ids = np.zeros(SIZE, np.uint16)
        for index, place in enumerate(PLACES, start=1):
            ids[mask_of(place)] = 300 * index
        ids[0, 0] = 300
        Image.fromarray(photo(number)).save(root / f"images/{number}.png")
        Image.fromarray(ids).save(root / f"labels/{number}.png")


def draw_coco(root: Path, num: int = 4) -> None:
    """Draw pictures and a COCO file: polygons, a crowd, and an outline that holds the centre of no pixel."""
    (root / "images").mkdir(parents=True)
    images, annotations = [], []
    for number in range(num):
        Image.fromarray(photo(number)).save(root / f"images/{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": SIZE[0], "width": SIZE[1]})
        for index, place in enumerate(PLACES):
            ring = [place.col, place.row, place.col_end, place.row, place.col_end, place.row_end]
            ring += [place.col, place.row_end]
            crowd = int(index == 2)
            annotations.append(
                {"id": len(annotations), "image_id": number, "category_id": index % 2, "iscrowd": crowd}
                | {"segmentation": [ring], "bbox": [place.col, place.row, place.width, place.height]}
            )
    tiny = [[1.1, 1.1, 1.3, 1.1, 1.3, 1.3]]
    annotations.append({"id": 99, "image_id": 0, "category_id": 1, "segmentation": tiny})
    categories = [{"id": 0, "name": "side-road"}, {"id": 1, "name": "house"}]
    tree = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations.json").write_text(json.dumps(tree))


def draw_scene(root: Path, size: tuple[int, int] = (128, 160)) -> list[tuple[str, Window]]:
    """Draw a GeoTIFF with polygons in longitude and latitude; the last one reaches over its border."""
    import shapely
    from pyproj import Transformer

    root.mkdir(parents=True, exist_ok=True)
    grid = rasterio.Affine(2.0, 0, 1_000_000.0, 0, -2.0, 6_000_000.0)
    form = {"driver": "GTiff", "height": size[0], "width": size[1], "count": 3, "dtype": "uint8"}
    with rasterio.open(root / "scene.tif", "w", crs="EPSG:3857", transform=grid, **form) as out:
        out.write(np.moveaxis(photo(0, size), 2, 0))
    drawn = [("house", Window(10, 12, 20, 16)), ("side-road", Window(60, 70, 12, 30))]
    drawn.append(("house", Window(100, 150, 20, 20)))
    back = Transformer.from_crs(3857, 4326, always_xy=True)
    features = []
    for name, place in drawn:
        corners = [(place.row, place.col), (place.row, place.col_end)]
        corners += [(place.row_end, place.col_end), (place.row_end, place.col)]
        ring = [back.transform(*(grid @ (col, row))) for row, col in corners]
        shape = json.loads(shapely.to_geojson(shapely.Polygon(ring)))
        features.append({"type": "Feature", "properties": {"kind": name}, "geometry": shape})
    (root / "scene.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return drawn
