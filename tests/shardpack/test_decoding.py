"""From content types to values and back."""

from __future__ import annotations

import io
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import EntryPoint
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, WebPImagePlugin

import shardpack
from shard_format import Limits, images
from shard_format.errors import BadMetadata, BadValue, InvalidArgument, LimitExceeded, ShardError
from shardpack import Record, ShardPackWriter, _msgpack, values
from shardpack.content_types import ENDINGS, content_type_of, is_compressible
from tests.shardpack.support import HandMadePack, HandMadeRecord, Part, write_pack
from wshard import Episode, load_wshard, save_wshard

if TYPE_CHECKING:
    from pathlib import Path


def entry(content_type: str, data: bytes, limits: Limits | None = None) -> shardpack.Entry:
    """An entry of this type with these bytes."""
    record = HandMadeRecord(b"k", [Part(b"name", data, content_type.encode())])
    dataset = shardpack.open(HandMadePack([record]).to_bytes(), limits=limits or Limits())
    return dataset[0]["name"]


def saved(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def npy(array: Any, **options: Any) -> bytes:  # noqa: ANN401 - what NumPy takes
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def header(descr: str, shape: str) -> str:
    """The text of the header of an .npy file."""
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def with_header(text: str, version: int) -> bytes:
    """An .npy file without data."""
    data = text.encode("latin-1" if version < 3 else "utf-8")
    size = len(data).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes((version, 0)) + size + data


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 8\n%%EndComments\nshowpage\n%%EOF\n"
# Of a file that has PostScript and a preview.
DOS_HEAD = struct.pack("<IIIIIIIHH", 0xC6D3D0C5, 32, len(POSTSCRIPT), 0, 0, 0, 0, 0xFFFF, 0)
SMALL = Limits(max_decompressed_bytes=1 << 24)
Image100: TypeAlias = tuple[str, bytes]


def large_images() -> dict[str, Image100]:
    """Content type and file of 100 × 100 pixels, of each kind for which Pillow has a reader of its own."""
    image = Image.new("RGB", (100, 100), (1, 2, 3))
    found = {kind: (f"image/{kind}", saved(image, kind)) for kind in ("png", "bmp", "gif", "jpeg")}
    for name, options in {
        "webp": {},
        "webp lossless": {"lossless": True},
        "tiff": {},
        "tiff lzw": {"compression": "tiff_lzw"},
    }.items():
        stream = io.BytesIO()
        image.save(stream, name.split()[0], **options)  # type: ignore[arg-type]
        found[name] = (f"image/{name.split()[0]}", stream.getvalue())
    # A frame that is larger than the screen, and is to be cleared before the next one.
    gif = found["gif"][1]
    small = gif[:6] + struct.pack("<HH", 4, 4) + gif[10:]
    frame = small.index(b"\x2c\0\0\0\0")
    control = b"\x21\xf9\x04" + bytes([2 << 2, 0, 0, 0]) + b"\0"
    found["gif frame"] = ("image/gif", small[:frame] + control + small[frame:])
    return found


LARGE_IMAGES = large_images()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten afterwards."""
    monkeypatch.setattr(values, "_registered", dict(values._registered))


class TestValues:
    """What a writer stores comes back as it was."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("a.json", {"x": [1, 2.5, None, "ü"], "y": {}}),
            ("a.json", [1, 2]),
            ("json", "text"),
            ("a.txt", "hällo"),
            ("A.JSON", {"x": 1}),
        ],
    )
    def test_plain_values(self, tmp_path: Path, name: str, value: Any) -> None:  # noqa: ANN401 - any value
        path = write_pack(tmp_path / "a", {"k": {name: value}})
        assert shardpack.open(path)[0][name].decode() == value
        assert shardpack.open(path)[0].decode() == {name: value}

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(24).reshape(2, 3, 4),
            np.asfortranarray(np.arange(12.0).reshape(3, 4)),
            np.arange(24)[::2],
            np.float32(3.5),
            np.empty((0, 3), np.int8),
            np.array([b"ab", b"c"]),
            np.array(["ü", "ab"]),
            np.array([(1, 2.5)], [("a", "i4"), ("b", ">f8")]),
            np.array(["2024-01-01"], "datetime64[D]"),
            np.ones((2, 2), bool),
        ],
        ids=lambda array: f"{array.dtype} {array.shape}",
    )
    def test_arrays(self, tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
        samples = {"k": {"a.npy": array, "b.npz": {"x": array, "y": np.arange(3)}}}
        record = shardpack.open(write_pack(tmp_path / "a", samples))[0]
        values: list[Any] = [record["a.npy"].decode(), record["b.npz"].decode()["x"]]
        values.append(np.load(io.BytesIO(record["a.npy"].data)))
        values.append(np.load(io.BytesIO(record["b.npz"].data))["x"])
        for found in values:
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            assert np.array_equal(found, array)

    def test_an_array_is_a_view_of_the_file(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "a", {"k": {"a.npy": np.arange(100)}}, alignment=64)
        found = shardpack.open(path)[0]["a.npy"].decode()
        assert not found.flags.owndata
        assert not found.flags.writeable
        assert found.ctypes.data % 64 == 0

    def test_labels_are_written_as_numbers(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "a", {"k": {"a.cls": 7, "b.cls": np.int64(-3)}})
        assert shardpack.open(path)[0].decode() == {"a.cls": "7", "b.cls": "-3"}

    def test_a_type_that_nobody_knows_is_a_view(self) -> None:
        found = entry("application/x-own", b"123").decode()
        assert isinstance(found, memoryview)
        assert bytes(found) == b"123"
        assert entry("", b"123").decode() == b"123"
        assert entry("text/x-own; charset=utf-8", b"123").decode() == "123"


class TestImages:
    """Through Pillow."""

    @pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "webp"])
    def test_colours_without_loss(self, kind: str) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
        image = Image.fromarray(pixels)
        stream = io.BytesIO()
        image.save(stream, kind, **({"lossless": True} if kind == "webp" else {}))
        found = entry(f"image/{kind}", stream.getvalue()).decode()
        assert np.array_equal(found, pixels)

    @pytest.mark.parametrize("through", ["simplejpeg", "Pillow"])
    def test_jpeg(self, monkeypatch: pytest.MonkeyPatch, through: str) -> None:
        if through == "simplejpeg":
            pytest.importorskip("simplejpeg")
            monkeypatch.setattr(images, "_through_pillow", None)
        else:
            monkeypatch.setattr(images, "_simplejpeg", lambda: None)
        pixels = np.full((16, 24, 3), (200, 100, 50), np.uint8)
        found = entry("image/jpeg", saved(Image.fromarray(pixels), "jpeg")).decode()
        assert found.shape == (16, 24, 3)
        assert np.abs(found.astype(int) - pixels).max() < 8
        grey = Image.fromarray(np.full((16, 24), 90, np.uint8))
        assert entry("image/jpeg", saved(grey, "jpeg")).decode().shape == (16, 24)

    def test_jpeg_files_are_the_same_with_and_without_simplejpeg(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Pixels, and what is refused."""
        pytest.importorskip("simplejpeg")
        random = np.random.default_rng(0)
        colours = Image.fromarray(random.integers(0, 256, (40, 50, 3), np.uint8))
        files = [saved(colours.convert(mode), "jpeg") for mode in ("RGB", "L", "CMYK")]
        for options in ({"progressive": True}, {"subsampling": 1}, {"keep_rgb": True}):
            stream = io.BytesIO()
            colours.save(stream, "jpeg", **options)
            files.append(stream.getvalue())
        # Four pixels of brightness for one of colour, one beside the other: a ratio without a name in libjpeg.
        start = files[0].index(b"\xff\xc0")
        files.append(files[0][: start + 11] + b"\x41" + files[0][start + 12 :])
        files += [files[0][: len(files[0]) // 2], b"", files[0][:-40] + bytes(38) + b"\xff\xd9"]
        files += [b"junk" + files[0], files[0] + b"junk", POSTSCRIPT]
        for data in files:
            found: list[object] = []
            for _ in range(2):
                try:
                    found.append(entry("image/jpeg", data, SMALL).decode())
                except ShardError as error:
                    found.append(error.code)
                monkeypatch.setattr(images, "_simplejpeg", lambda: None)
            monkeypatch.undo()
            first, second = found
            if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
                assert first.shape == second.shape
                assert np.abs(first.astype(int) - second).max() <= 1
            else:
                assert first == second

    def test_depth_of_sixteen_bits_and_palettes(self) -> None:
        depth = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
        assert np.array_equal(
            entry("image/png", saved(Image.fromarray(depth), "png")).decode(), depth
        )
        # Big-endian: what it would become as colours is white.
        numbers = {256: 4, 257: 3, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1, 278: 3, 279: 24}
        data = b"MM\0*" + struct.pack(">I", 8 + 24) + depth.astype(">u2").tobytes()
        data += struct.pack(">H", len(numbers))
        data += b"".join(struct.pack(">HHII", tag, 4, 1, value) for tag, value in numbers.items())
        found = entry("image/tiff", data + bytes(4)).decode()
        assert np.array_equal(found, depth)
        assert found.dtype == np.uint16
        palette = Image.new("P", (4, 3), 1)
        palette.putpalette([0, 0, 0, 255, 0, 0])
        found = entry("image/png", saved(palette, "png")).decode()
        assert found.shape == (3, 4, 3)
        assert found[0, 0].tolist() == [255, 0, 0]

    @pytest.mark.parametrize("kind", ["bmp", "gif", "jpeg", "png", "tiff", "webp"])
    def test_no_program_is_started_for_postscript(
        self, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        started: list[object] = []

        def start(*given: object, **_: object) -> None:
            started.append(given)
            raise OSError

        monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
        for data in (POSTSCRIPT, DOS_HEAD + POSTSCRIPT):
            with suppress(OSError), Image.open(io.BytesIO(data)) as image:
                image.load()
            assert started  # what Pillow does by itself
            started.clear()
            with pytest.raises(BadValue, match=f"expected a {kind.upper()} file"):
                entry(f"image/{kind}", data).decode()
            assert not started

    def test_content_of_another_format_is_refused(self) -> None:
        image = Image.new("RGB", (4, 4))
        for kind, other in (("png", "tiff"), ("jpeg", "png"), ("gif", "bmp")):
            with pytest.raises(BadValue, match=f"expected a {kind.upper()} file"):
                entry(f"image/{kind}", saved(image, other)).decode()

    @pytest.mark.parametrize("content", LARGE_IMAGES.values(), ids=LARGE_IMAGES)
    def test_the_limit_is_ours_alone(
        self, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, content: Image100
    ) -> None:
        """Whatever Pillow's own limit is: some of its readers check sizes themselves, others do not."""
        kind, data = content
        for of_pillow in (10, 8000, None):
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", of_pillow)
            enough = Limits(max_decompressed_bytes=100 * 100 * 4)
            assert entry(kind, data, enough).decode().shape[:2] == (100, 100)
            with pytest.raises(LimitExceeded, match=r"100 × 100 pixels.*max_decompressed_bytes"):
                entry(kind, data, Limits(max_decompressed_bytes=100 * 100 * 4 - 1)).decode()
        assert not recwarn.list

    def test_images_that_others_open_keep_the_limit_of_pillow(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
        kind, data = LARGE_IMAGES["webp"]
        found: list[object] = []
        reader = WebPImagePlugin.WebPImageFile

        def open_beside(file: io.BytesIO) -> WebPImagePlugin.WebPImageFile:
            """Another thread opens the same image while ours is being decoded."""
            with pytest.raises(Image.DecompressionBombError):
                others.submit(Image.open, io.BytesIO(data)).result()
            found.append(file)
            return reader(file)

        with ThreadPoolExecutor(1) as others:
            others.submit(int).result()  # starts the thread
            monkeypatch.setattr(WebPImagePlugin, "WebPImageFile", open_beside)
            assert entry(kind, data).decode().shape == (100, 100, 3)
        assert found
        with pytest.raises(Image.DecompressionBombError):
            Image.open(io.BytesIO(data))

    def test_a_claim_of_pixels_without_data_is_refused(self) -> None:
        # It states 2³¹ - 1 columns and rows, and has no data.
        header = struct.pack(">IIBBBBB", 0x7FFFFFFF, 0x7FFFFFFF, 8, 2, 0, 0, 0)
        chunk = b"IHDR" + header
        data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
        data += struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\0IDAT"
        with pytest.raises(LimitExceeded, match="2147483647"):
            entry("image/png", data).decode()

    def test_a_small_image_in_a_huge_tile_is_refused(self) -> None:
        numbers = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 1 << 16, 323: 1 << 16}
        content = zlib.compress(b"")
        rows = {**numbers, 324: 8, 325: len(content)}
        data = b"II*\0" + struct.pack("<I", 8 + len(content)) + content
        data += struct.pack("<H", len(rows))
        data += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in rows.items())
        with pytest.raises(LimitExceeded, match="65536 × 65536"):
            entry("image/tiff", data + bytes(4)).decode()

    @pytest.mark.parametrize(("kind", "value"), [(2, b"a" * 5000), (12, struct.pack("<d", 9e9))])
    def test_a_tile_whose_size_is_no_number_is_refused(self, kind: int, value: bytes) -> None:
        """A text times a number would be a long text."""
        count = len(value) // (8 if kind == 12 else 1)
        numbers = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 16, 279: 256}
        data = b"II*\0" + struct.pack("<I", 8 + 256 + len(value)) + bytes(256) + value
        data += struct.pack("<H", len(numbers) + 2)
        data += b"".join(struct.pack("<HHII", tag, 4, 1, one) for tag, one in numbers.items())
        data += struct.pack("<HHII", 322, kind, count, 8 + 256)
        data += struct.pack("<HHII", 323, 4, 1, 100_000) + bytes(4)
        tracemalloc.start()
        try:
            with pytest.raises(BadValue, match="tile"):
                entry("image/tiff", data).decode()
            assert tracemalloc.get_traced_memory()[1] < 1 << 24
        finally:
            tracemalloc.stop()

    def test_a_jpeg_file_with_thousands_of_scans_is_refused(self) -> None:
        """Each takes a pass over all pixels and 90 bytes of the file."""
        stream = io.BytesIO()
        Image.new("L", (64, 64)).save(stream, "jpeg", progressive=True)
        data = stream.getvalue()
        scan = data[data.rfind(b"\xff\xda") : -2]
        with pytest.raises(LimitExceeded, match="2006 scans"):
            entry("image/jpeg", data[:-2] + scan * 2000 + data[-2:]).decode()
        # What only looks like scans, in a comment and behind the end, does not count.
        comment = b"\xff\xfe" + struct.pack(">H", 60_002) + b"\xff\xda" * 30_000
        several = data[:2] + comment + data[2:-2] + scan * 50 + data[-2:] + b"\xff\xda" * 200
        assert entry("image/jpeg", several).decode().shape == (64, 64)
        endless = data[:2] + b"\xff" * 1_000_000 + b"\0" + b"\xff\xda\0\0" * 300
        with pytest.raises(ShardError):
            entry("image/jpeg", endless).decode()

    def test_damaged_images_raise_our_errors_and_print_nothing(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        pixels = np.random.default_rng(0).integers(0, 9, (16, 16, 3), np.uint8)
        random = Random(0)
        for kind, options in (
            ("png", {}),
            ("gif", {}),
            ("bmp", {}),
            ("jpeg", {}),
            ("webp", {}),
            *(("tiff", {"compression": name}) for name in ("tiff_lzw", "tiff_deflate", "jpeg")),
        ):
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, kind, **options)
            good = stream.getvalue()
            for _ in range(60):
                data = bytearray(good)
                for _ in range(random.randrange(1, 6)):
                    data[random.randrange(len(data))] = random.randrange(256)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    with suppress(ShardError):
                        entry(f"image/{kind}", bytes(data), SMALL).decode()
        assert capfd.readouterr() == ("", "")

    def test_damaged_images_and_too_large_ones(self) -> None:
        data = saved(Image.new("RGB", (100, 100)), "png")
        for wrong in (b"", data[:50], b"nonsense"):
            with pytest.raises(BadValue, match="record 'k'"):
                entry("image/png", wrong).decode()
            with pytest.raises(BadValue):
                entry("image/jpeg", wrong).decode()
        with pytest.raises(LimitExceeded):
            entry("image/png", data, Limits(max_decompressed_bytes=10_000)).decode()


class TestDamage:
    """Contents that do not fit their type."""

    @pytest.mark.parametrize(
        ("content_type", "data"),
        [
            ("application/json", b"{"),
            ("application/json", b"\xff"),
            ("application/json", b"[" * 100_000),
            ("text/plain", b"\xff"),
            ("application/x-npy", b""),
            ("application/x-npy", b"\x93NUMPY\x01\x00\xff\xff"),
            ("application/x-npy", npy(np.arange(4))[:-1]),
            ("application/x-npy", npy(np.arange(4)) + b"\0"),
            ("application/x-npy", npy(np.array([{}], object), allow_pickle=True)),
            ("application/x-npy", npy(np.arange(4)).replace(b"(4,)", b"(-4,)")),
            ("application/x-npy", npy(np.arange(4)).replace(b"<i8", b"zzz")),
            ("application/x-npy", npy(np.arange(4)).replace(b"\x01\x00", b"\x09\x00", 1)),
            ("application/x-npz", b""),
            ("application/x-npz", b"PK\x03\x04"),
        ],
    )
    def test_it_is_an_error_of_ours(self, content_type: str, data: bytes) -> None:
        with pytest.raises(BadValue) as caught:
            entry(content_type, data).decode()
        assert caught.value.entry == "name"

    @pytest.mark.parametrize(
        "text",
        [
            "{" * 60_000,
            "[" * 60_000,
            "-" * 60_000,
            "{'descr': [('a', " * 3000,
            header("'<f8'", "(1" + "0" * 5000 + ",)"),
            header("'<f8'", "(-1, -1)"),
            header("'<f8'", "(0, 9223372036854775807)"),
            header("'<f8'", "(4294967296, 4294967296)"),
            header("'<f8'", "(" + "1, " * 65 + ")"),
            header("'<f8'", "(0" + ", 0" * 65 + ")"),
            header("'<f8'", "(True,)"),
            header("'<f8'", "1"),
            header("'|V0'", "(999999999999,)"),
            header("[]", "(999999999999,)"),
            header("'|S0'", "()"),
            header("'<U999999999'", "(0,)"),
            header("'|O'", "(0,)"),
            header("[('a', [('b', '|O')])]", "(0,)"),
            header("[('a', '<f8', (99999, 99999))]", "(0,)"),
            header("[('a', '<f8'), ('a', '<f8')]", "(0,)"),
            header("[('a',)]", "(0,)"),
            header("[0]", "(0,)"),
            header("'f8,f8'", "(0,)"),
            header("'(2,)f8'", "(0,)"),
            header("'<M8[zz]'", "(0,)"),
            header("[('a', " * 40 + "'<f8'" + ")]" * 40, "(0,)"),
            header("{'a': ('<f8', 0)}", "(0,)"),
            header("'<f8'", "(0,)").replace("False", "0"),
            header("'<f8'", "(0,)") + "1",
            "{'descr': '<f8', 'shape': (0,)}",
            "('<f8', False, (0,))",
            "{'descr': '\\d', 'fortran_order': False, 'shape': (0,)}",
            "{'descr': 'a",
            "\0",
            "",
        ],
        ids=lambda text: text[:60],
    )
    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_a_header_that_states_no_array_is_refused(self, version: int, text: str) -> None:
        with pytest.raises(BadValue) as caught:
            entry("application/x-npy", with_header(text, version)).decode()
        assert caught.value.entry == "name"

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_any_version_and_python_2_are_read(self, version: int) -> None:
        for text in (header("'<f4'", "(3L, 1L)"), header('"<f4"', "(3,1)").replace(", }", "}")):
            data = with_header(text, version) + np.arange(3, dtype="<f4").tobytes()
            assert entry("application/x-npy", data).decode().tolist() == [[0], [1], [2]]
        names = np.zeros(2, [('it\'s "ü"\n', "<f4"), (("title", "b\\"), "u1", (2,))])
        stream = io.BytesIO()
        np.lib.format.write_array(stream, names, version=(version, 0))
        assert entry("application/x-npy", stream.getvalue()).decode().dtype == names.dtype

    @given(
        changes=st.lists(
            st.tuples(st.integers(0, 127), st.binary(min_size=1, max_size=3)), max_size=4
        )
    )
    def test_any_change_of_a_header_is_an_error_of_ours_or_an_array(
        self, changes: list[tuple[int, bytes]]
    ) -> None:
        data = bytearray(npy(np.zeros(3, [("a", "<f4"), ("b", ">i2", (2,))])))
        for at, piece in changes:
            data[at : at + len(piece)] = piece
        with suppress(ShardError):
            entry("application/x-npy", bytes(data)).decode()

    @given(text=st.text("{}[](),:'\\ LTrue0123456789<>|=OfSUVM8descr", max_size=60))
    def test_any_text_as_a_header_is_an_error_of_ours(self, text: str) -> None:
        with pytest.raises(ShardError):
            entry("application/x-npy", with_header(text, 2)).decode()

    def test_msgpack(self) -> None:
        with pytest.raises(BadMetadata):
            entry("application/vnd.msgpack", b"\xc1").decode()

    @pytest.mark.parametrize(
        ("content_type", "data"),
        [
            ("application/json", b"[" + b"[]," * 499_999 + b"[],0]"),
            (
                "application/vnd.msgpack",
                b"\xdd" + (1_000_001).to_bytes(4, "big") + bytes(1_000_001),
            ),
            ("application/vnd.msgpack", b"\x92" * 100 + b"\xdc\xff\xff" + b"\x90" * 65_635),
            ("application/json", b" " * (16 << 20) + b"1"),
            ("application/vnd.msgpack", b"\xc6" + (1 << 24).to_bytes(4, "big") + bytes(1 << 24)),
        ],
        ids=["lists", "items", "nested items", "long text", "long bytes"],
    )
    def test_a_caller_may_raise_the_limits_of_values(self, content_type: str, data: bytes) -> None:
        limits = Limits(max_json_nodes=1000) if len(data) < 100_000 else Limits()
        with pytest.raises(LimitExceeded, match=r"entry 'name'.*trust"):
            entry(content_type, data, limits).decode()
        larger = Limits(max_json_bytes=1 << 25, max_json_nodes=2_000_000)
        assert entry(content_type, data, larger).decode() is not None

    def test_an_archive_that_unpacks_to_too_much(self) -> None:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", npy(np.zeros(100_000)))
        with pytest.raises(LimitExceeded):
            entry(
                "application/x-npz", stream.getvalue(), Limits(max_decompressed_bytes=9999)
            ).decode()
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
            archive.writestr("x.npy", npy(np.zeros(10)))
        with pytest.raises(BadValue):
            entry("application/x-npz", stream.getvalue()).decode()

    def test_an_archive_that_states_less_than_it_unpacks_to(self) -> None:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", npy(np.zeros(8_000_000)))
        data = stream.getvalue()
        true_size = struct.pack("<I", 64_000_128)
        assert data.count(true_size) == 2
        for stated in (0, 136, 100_000):
            lie = data.replace(true_size, struct.pack("<I", stated))
            with_lie = entry("application/x-npz", lie)
            assert with_lie.data
            tracemalloc.start()
            try:
                with pytest.raises(BadValue):
                    with_lie.decode()
                assert tracemalloc.get_traced_memory()[1] < 4_000_000
            finally:
                tracemalloc.stop()

    def test_the_limit_holds_for_all_arrays_of_an_archive_together(self) -> None:
        stream = io.BytesIO()
        np.savez_compressed(stream, a=np.zeros(1000), b=np.zeros(1000))
        limits = Limits(max_decompressed_bytes=16_256)
        assert entry("application/x-npz", stream.getvalue(), limits).decode().keys() == {"a", "b"}
        with pytest.raises(LimitExceeded):
            entry(
                "application/x-npz", stream.getvalue(), Limits(max_decompressed_bytes=16_255)
            ).decode()

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_an_archive_with_two_arrays_of_one_name_is_refused(self) -> None:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("x.npy", npy(np.zeros(1)))
            archive.writestr("x.npy", npy(np.ones(1)))
        with pytest.raises(BadValue, match="two arrays"):
            entry("application/x-npz", stream.getvalue()).decode()

    def test_any_change_of_an_archive_is_an_error_of_ours_or_arrays(self) -> None:
        stream = io.BytesIO()
        np.savez_compressed(stream, a=np.arange(9), b=np.zeros(4))
        random = Random(0)
        for _ in range(1000):
            data = bytearray(stream.getvalue())
            for _ in range(random.randrange(1, 4)):
                data[random.randrange(len(data))] = random.choice(
                    (0, 1, 255, random.randrange(256))
                )
            with suppress(ShardError):
                entry("application/x-npz", bytes(data), SMALL).decode()


class TestRegistry:
    """Decoders of your own."""

    @pytest.mark.usefixtures("registry")
    def test_a_registered_decoder_is_used(self) -> None:
        shardpack.register_decoder("application/x-own", len)
        assert entry("application/x-own", b"1234").decode() == 4
        shardpack.register_decoder("application/json", bytes)
        assert entry("application/json", b"{}").decode() == b"{}"
        shardpack.register_decoder("application/x-own", "builtins:bytes")
        assert entry("application/x-own", b"1234").decode() == b"1234"

    def test_a_decoder_of_the_call_goes_first(self) -> None:
        assert entry("application/json", b"{}").decode({"application/json": len}) == 2
        assert entry("application/json", b"{}").decode({"text/plain": len}) == {}

    @pytest.mark.usefixtures("registry")
    def test_what_cannot_be_a_decoder_is_refused(self) -> None:
        with pytest.raises(InvalidArgument):
            shardpack.register_decoder("", len)
        with pytest.raises(InvalidArgument):
            shardpack.register_decoder("a/b", 7)  # type: ignore[arg-type] # wrong on purpose
        shardpack.register_decoder("a/b", "no.such.module:function")
        with pytest.raises(InvalidArgument, match="cannot be loaded"):
            entry("a/b", b"").decode()

    def test_an_episode_comes_back_lazy_and_in_place(self, tmp_path: Path) -> None:
        states = np.arange(6000, dtype=np.float32).reshape(1000, 6)
        episode = Episode("ep")
        episode.observations["state"] = states
        save_wshard(episode, tmp_path / "ep.wshard")
        data = (tmp_path / "ep.wshard").read_bytes()
        path = write_pack(tmp_path / "a", {"ep": {"ep.wshard": data}}, alignment=64)
        found = shardpack.open(path)["ep"]["ep.wshard"]
        assert found.content_type == "application/vnd.shard.episode"
        assert found.compression == "none"
        assert found.data == data
        shardpack.register_decoder(found.content_type, load_wshard, from_source=True)
        loaded = found.decode()
        assert np.array_equal(loaded.observations["state"].data, states)

    def test_an_installed_package_brings_a_decoder_as_an_entry_point(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        points = {
            "shardpack.decoders": [EntryPoint("a/c", "builtins:bytes", "shardpack.decoders")],
            "shardpack.source_decoders": [
                EntryPoint("a/d", "operator:methodcaller", "shardpack.source_decoders")
            ],
        }
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points[group])
        values._installed.cache_clear()
        try:
            assert entry("a/c", b"x").decode() == b"x"
            assert values.is_read_in_parts("a/d")
            assert not values.is_read_in_parts("a/c")
            with pytest.raises(TypeError, match="method name"):  # it was called with a source
                entry("a/d", b"x").decode()
        finally:
            values._installed.cache_clear()


@given(data=st.binary(max_size=40))
def test_any_bytes_are_messagepack_or_an_error_of_ours(data: bytes) -> None:
    with suppress(BadMetadata):
        _msgpack.unpack(data)


def test_messagepack_is_the_one_of_its_specification() -> None:
    stored = bytes.fromhex("82a7636f6d70616374c3a6736368656d6100")
    assert _msgpack.unpack(stored) == {"compact": True, "schema": 0}
    assert _msgpack.unpack(bytes.fromhex("d6ff00000001")) == _msgpack.Extension(-1, b"\0\0\0\1")
    for size, start in ((31, "bf"), (32, "d920"), (256, "da0100"), (65536, "db00010000")):
        assert _msgpack.unpack(bytes.fromhex(start) + b"a" * size) == "a" * size
    for number, text in ((127, "7f"), (128, "cc80"), (-32, "e0"), (-33, "d0df")):
        assert _msgpack.unpack(bytes.fromhex(text)) == number


def test_endings_say_the_content_type() -> None:
    assert content_type_of("left.jpg") == content_type_of("JPG") == "image/jpeg"
    assert content_type_of("a.tar.gz") == "application/gzip"
    assert content_type_of("noise") == content_type_of("a.") == "application/octet-stream"
    assert not is_compressible("image/heic")
    assert is_compressible("audio/wav")
    assert all(kind.isascii() and " " not in kind for kind in ENDINGS.values())


def test_a_record_says_what_it_is(tmp_path: Path) -> None:
    with ShardPackWriter(tmp_path / "a") as writer:
        writer.write("k", {"a.txt": "1"})
    record: Record = shardpack.open(tmp_path / "a")[0]
    assert repr(record) == "<Record 'k': 'a.txt'>"
    assert repr(record["a.txt"]) == "<Entry 'a.txt': text/plain, 1 bytes, none>"
    assert len(record) == 1
    assert "a.txt" in record
