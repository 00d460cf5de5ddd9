"""Pictures of every odd kind, and things that are none."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import os
import re
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageFile, PngImagePlugin

from edge_vl.errors import ImageError, RequestError
from edge_vl.exif import read_orientation
from edge_vl.file_kind import name_file_kind
from edge_vl.frame import Frame
from edge_vl.pictures import PictureLimits, load_picture

WHITE = (255, 255, 255)
RED = (255, 0, 0)


def encode(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    """Encode an image in memory."""
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def make_png(width: int, height: int, depth: int, colour: int, rows: bytes, *, key: bytes = b"") -> bytes:
    """Write a PNG of any depth, which Pillow cannot."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    transparency = chunk(b"tRNS", key) if key else b""
    body = chunk(b"IHDR", header) + transparency + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def noise(height: int, width: int, channels: int = 3) -> NDArray[np.uint8]:
    """Make reproducible noise."""
    return np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, channels), dtype=np.uint8)


def first_pixel(picture: Any) -> tuple[int, ...]:
    """Load a picture and return its first pixel."""
    frame = load_picture(picture)
    assert frame.pixels.dtype == np.uint8
    assert frame.pixels.shape[2] == 3
    assert frame.pixels.flags.c_contiguous
    assert not frame.pixels.flags.writeable
    return tuple(frame.pixels[0, 0].tolist())


def refusal(picture: Any, **options: Any) -> ImageError:
    """Load a picture that is none and return the error."""
    with pytest.raises(ImageError) as caught:
        load_picture(picture, **options)
    return caught.value


class TestOrientation:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
    def test_a_turned_picture_comes_upright(self, orientation: int, file_format: str) -> None:
        upright = np.full((48, 96, 3), 128, np.uint8)
        upright[:24, :48] = RED
        upright[24:, 48:] = (0, 0, 255)
        back = {
            1: None,
            2: Image.Transpose.FLIP_LEFT_RIGHT,
            3: Image.Transpose.ROTATE_180,
            4: Image.Transpose.FLIP_TOP_BOTTOM,
            5: Image.Transpose.TRANSPOSE,
            6: Image.Transpose.ROTATE_90,
            7: Image.Transpose.TRANSVERSE,
            8: Image.Transpose.ROTATE_270,
        }[orientation]
        stored = Image.fromarray(upright)
        stored = stored if back is None else stored.transpose(back)
        exif = Image.Exif()
        exif[0x0112] = orientation
        frame = load_picture(encode(stored, file_format, exif=exif))
        assert frame.pixels.shape == (48, 96, 3)
        assert np.abs(frame.pixels.astype(int) - upright)[4:20, 4:44].max() < 12
        assert np.abs(frame.pixels.astype(int) - upright)[28:44, 52:92].max() < 12

    def test_a_red_upper_edge_of_a_jpeg_with_orientation_6_becomes_the_right_edge(self) -> None:
        pixels = np.zeros((48, 96, 3), np.uint8)
        pixels[:8] = RED
        exif = Image.Exif()
        exif[0x0112] = 6
        frame = load_picture(encode(Image.fromarray(pixels), "JPEG", exif=exif, quality=95))
        assert (frame.width, frame.height) == (48, 96)
        assert frame.pixels[:, -4:, 0].min() > 200
        assert frame.pixels[:, :32].max() < 60

    @pytest.mark.parametrize(
        "exif", [b"Exif\0\0junk", b"Exif\0\0II*\0\xff\xff\xff\xff", b"", b"Exif\0\0MM\0*\0\0\0\x08\xff"]
    )
    def test_damaged_exif_does_not_cost_the_picture(self, exif: bytes) -> None:
        image = Image.new("RGB", (8, 4), RED)
        for file_format in ("JPEG", "WEBP", "PNG"):  # warnings are errors here
            assert load_picture(encode(image, file_format, exif=exif)).width == 8

    def test_damage_behind_the_orientation_does_not_cost_it(self) -> None:
        entry = struct.pack("<HHII", 0x0112, 3, 1, 6)
        exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 500) + entry + struct.pack("<HHII", 0x011A, 5, 9, 1 << 30)
        for file_format in ("JPEG", "WEBP", "PNG"):
            assert load_picture(encode(Image.new("RGB", (8, 4)), file_format, exif=exif)).width == 4

    def test_the_orientation_is_found_in_a_text_chunk_and_in_xmp_too(self) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        text = PngImagePlugin.PngInfo()
        text.add_text("Raw profile type exif", f"\nexif\n  26\n{exif.tobytes().hex()}\n")
        assert load_picture(encode(Image.new("RGB", (8, 4)), pnginfo=text)).width == 4
        xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
        assert load_picture(encode(Image.new("RGB", (8, 4)), "JPEG", xmp=xmp)).width == 4

    def test_an_orientation_edited_in_a_pillow_image_counts(self) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        image = Image.open(io.BytesIO(encode(Image.new("RGB", (8, 4)), "JPEG", exif=exif)))
        image.getexif()[0x0112] = 1
        assert load_picture(image).width == 8

    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=60), st.sampled_from([b"", b"Exif\0\0", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08"]))
    def test_any_bytes_may_stand_for_exif(self, data: bytes, start: bytes) -> None:
        assert read_orientation(start + data) is None or data


class TestTransparency:
    def test_hidden_colours_become_white(self) -> None:
        assert first_pixel(encode(Image.new("RGBA", (4, 4), (255, 0, 0, 0)))) == WHITE
        assert first_pixel(encode(Image.new("LA", (4, 4), (9, 0)))) == WHITE
        assert first_pixel(encode(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "WEBP", lossless=True)) == WHITE

    def test_half_transparent_red_is_pink(self) -> None:
        assert first_pixel(encode(Image.new("RGBA", (4, 4), (255, 0, 0, 128)))) == (255, 127, 127)

    @pytest.mark.parametrize("transparency", [0, b"\0\xff"])
    def test_a_transparent_palette_entry_becomes_white(self, transparency: int | bytes) -> None:
        image = Image.new("P", (4, 4), 0)
        image.putpalette([255, 0, 0, 0, 255, 0])
        assert first_pixel(encode(image, transparency=transparency)) == WHITE
        assert first_pixel(encode(image, "GIF", transparency=0)) == WHITE
        assert first_pixel(encode(image)) == RED

    def test_every_mode_of_pillow_with_alpha_is_laid_on_white(self) -> None:
        premultiplied = Image.new("RGBA", (2, 2), (255, 0, 0, 0)).convert("RGBa")
        assert first_pixel(premultiplied) == WHITE
        assert first_pixel(Image.new("LA", (2, 2), (0, 0)).convert("La")) == WHITE
        assert first_pixel(Image.new("PA", (2, 2), (0, 0))) == WHITE

    @pytest.mark.parametrize(
        ("depth", "colour", "row", "key"),
        [
            (1, 0, b"\x80", b"\0\1"),
            (2, 0, b"\x40", b"\0\1"),
            (4, 0, b"\x30", b"\0\3"),
            (8, 0, b"\x3f", b"\0\x3f"),
            (16, 0, b"\x3f\x10", b"\x3f\x10"),
            (8, 2, b"\xff\0\0", b"\0\xff\0\0\0\0"),
            (16, 2, b"\xff\1\0\2\0\3", b"\xff\1\0\2\0\3"),
            (16, 4, b"\x3f\x10\0\0", b""),
            (16, 6, b"\xff\xff\0\0\0\0\0\0", b""),
        ],
    )
    def test_a_transparent_colour_of_a_png_is_hidden_at_every_depth(
        self, depth: int, colour: int, row: bytes, key: bytes
    ) -> None:
        assert first_pixel(make_png(1, 1, depth, colour, b"\0" + row, key=key)) == WHITE
        if key:
            assert first_pixel(make_png(1, 1, depth, colour, b"\0" + row)) != WHITE or depth == 1


class TestDepthsAndModes:
    def test_sixteen_bit_grey_is_scaled_and_not_clipped(self) -> None:
        for value, wanted in ((0, 0), (300, 1), (32768, 128), (65535, 255)):
            row = b"\0" + struct.pack(">H", value)
            assert first_pixel(make_png(1, 1, 16, 0, row)) == (wanted,) * 3
            assert first_pixel(Image.fromarray(np.full((2, 2), value, np.uint16))) == (wanted,) * 3
            assert first_pixel(encode(Image.fromarray(np.full((2, 2), value, np.uint16)), "TIFF")) == (wanted,) * 3
            assert first_pixel(np.full((2, 2), value, np.uint16)) == (wanted,) * 3
            big_endian = Image.frombytes("I;16B", (1, 1), struct.pack(">H", value))
            assert first_pixel(big_endian) == (wanted,) * 3

    def test_a_pgm_of_ten_bits_is_scaled_by_its_own_maximum(self) -> None:
        assert first_pixel(b"P5 1 1 1023\n" + struct.pack(">H", 1023)) == WHITE
        assert first_pixel(b"P2 1 1 1023 0512") == (128,) * 3

    def test_low_bit_depths_reach_white(self) -> None:
        assert first_pixel(make_png(1, 1, 1, 0, b"\0\x80")) == WHITE
        assert first_pixel(make_png(1, 1, 2, 0, b"\0\xc0")) == WHITE
        assert first_pixel(make_png(1, 1, 4, 0, b"\0\xf0")) == WHITE

    @pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "I;16", "I", "F"])
    def test_every_mode_of_pillow_gives_its_grey(self, mode: str) -> None:
        grey = Image.new("L", (3, 2), 255)
        if mode == "LAB":
            image = Image.new("LAB", (3, 2), (255, 128, 128))
        elif mode == "I;16":
            image = Image.fromarray(np.full((2, 3), 65535, np.uint16))
        elif mode == "HSV":
            image = grey.convert("RGB").convert("HSV")
        else:
            image = grey.convert("RGB").convert(mode) if mode in ("CMYK", "YCbCr", "RGBX") else grey.convert(mode)
        assert image.mode == mode
        assert min(first_pixel(image)) >= 250

    def test_floats_and_wide_integers_are_scaled_or_refused_but_never_clipped(self) -> None:
        assert first_pixel(Image.fromarray(np.full((2, 2), 0.5, np.float32))) == (128,) * 3
        assert first_pixel(Image.fromarray(np.full((2, 2), 200, np.int32))) == (200,) * 3
        assert first_pixel(Image.fromarray(np.full((2, 2), 65535, np.int32))) == WHITE
        for odd in (np.float32(-1), np.float32("nan"), np.float32("inf"), np.int32(-5), np.int32(70000)):
            assert "scale them" in str(error := refusal(Image.fromarray(np.full((2, 2), odd)))) or "finite" in str(
                error
            )

    @pytest.mark.parametrize("file_format", ["BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP", "JPEG2000", "AVIF", "GIF"])
    def test_every_format_is_read(self, file_format: str) -> None:
        image = Image.new("RGB", (16, 9), (200, 40, 40))
        frame = load_picture(encode(image, file_format))
        assert frame.pixels.shape == (9, 16, 3)
        assert np.abs(frame.pixels.astype(int) - (200, 40, 40)).max() < 12

    @pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
    def test_the_first_frame_of_an_animation_is_taken(self, file_format: str) -> None:
        frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, (0, 255, 0), (0, 0, 255))]
        data = encode(frames[0], file_format, save_all=True, append_images=frames[1:])
        assert np.abs(np.subtract(first_pixel(data), RED)).max() < 12

    @pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 5000), (5000, 1), (4000, 30)])
    def test_extreme_shapes_are_kept(self, width: int, height: int) -> None:
        frame = load_picture(encode(Image.new("RGB", (width, height), RED)))
        assert (frame.width, frame.height) == (width, height)

    def test_a_progressive_grey_and_a_cmyk_jpeg_are_read(self) -> None:
        assert first_pixel(encode(Image.new("L", (8, 8), 255), "JPEG", progressive=True)) == WHITE
        assert min(first_pixel(encode(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG"))) > 250


class TestDamage:
    @pytest.mark.parametrize("file_format", ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM", "GIF", "AVIF"])
    def test_a_file_that_was_cut_short_is_refused_by_name(self, file_format: str, tmp_path: Path) -> None:
        data = encode(Image.fromarray(noise(64, 80)), file_format)
        path = tmp_path / "cut.jpg"
        path.write_bytes(data[:-600])
        error = refusal(path, index=3)
        assert error.index == 3
        assert str(path) in str(error)
        assert "damaged" in error.detected

    @pytest.mark.parametrize("file_format", ["JPEG", "PNG", "BMP", "TIFF", "GIF"])
    def test_it_is_refused_even_when_someone_told_pillow_to_be_lenient(
        self, file_format: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = encode(Image.fromarray(noise(64, 80)), file_format)
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        assert load_picture(data).width == 80
        assert "damaged" in refusal(data[:-600]).detected

    @pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM"])
    def test_nothing_but_an_image_error_comes_out_of_a_file_cut_anywhere(self, file_format: str) -> None:
        data = encode(Image.fromarray(noise(9, 11)), file_format)
        for length in range(0, min(len(data) - 1, 400), 3):
            with contextlib.suppress(ImageError):
                load_picture(data[:length])

    @settings(max_examples=80, deadline=None)
    @given(
        st.binary(max_size=200),
        st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"P6 "]),
    )
    def test_random_bytes_are_refused_and_nothing_else_is_raised(self, data: bytes, magic: bytes) -> None:
        with contextlib.suppress(ImageError):
            load_picture(magic + data)


class TestThingsThatAreNoPictures:
    @pytest.mark.parametrize(
        ("data", "detected"),
        [
            (b"", "nothing: 0 bytes"),
            (b"hello", "text"),
            ("größer".encode(), "text"),
            ("hello".encode("utf-16"), "text"),
            (b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page"),
            (b"\n\n<!-- x --><html></html>", "an HTML page"),
            (b'<?xml version="1.0"?><svg></svg>', "an SVG drawing"),
            (b'{"error": 404}', "JSON text"),
            (b"%PDF-1.7\n%\xe2\xe3", "a PDF"),
            (b"\0\0\0\x18ftypmp42" + bytes(20), "an MP4 video"),
            (b"\0\0\0\x18ftypheic" + bytes(20), "a HEIC picture"),
            (b"RIFF\0\0\0\0AVI LIST", "an AVI video"),
            (b"PK\x03\x04" + bytes(30), "a ZIP archive"),
            (bytes(1000), "nothing but zero bytes"),
            (b"\x9c\x01\x02\x03", "unknown binary data"),
        ],
    )
    def test_what_was_found_is_said(self, data: bytes, detected: str, tmp_path: Path) -> None:
        assert refusal(data).detected == detected
        path = tmp_path / "picture.jpg"
        path.write_bytes(data)
        assert refusal(path).detected == detected
        assert refusal(io.BytesIO(data), index=2).index == 2

    def test_git_lfs_pointers_and_base64_text_are_recognised(self) -> None:
        assert "Git LFS" in refusal(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n").detected
        assert "base64" in refusal(b"/9j/4AAQSkZJRgABAQ==").detected
        assert "base64" in refusal(b"data:image/png;base64,iVBORw0KGgo=").detected

    def test_paths_that_lead_to_no_file_are_named(self, tmp_path: Path) -> None:
        assert refusal(tmp_path).detected == "a directory"
        assert refusal(tmp_path / "none.png").detected == "a missing file"
        assert refusal(str(tmp_path / "none.png")).detected == "a missing file"
        (tmp_path / "file").write_bytes(b"x")
        assert refusal(tmp_path / "file" / "deeper").detected == "a missing file"
        assert refusal("").detected == "an empty path"
        assert refusal("a\0b").detected == "an invalid path"
        assert refusal("x" * 5000).detected == "a file that cannot be read"
        assert refusal("https://example.com/a.jpg").detected == "a URL"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_pipes_and_devices_do_not_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert refusal(tmp_path / "pipe").detected == "a named pipe"
        assert refusal("/dev/zero").detected == "a device"

    def test_a_file_that_may_not_be_read_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "secret.png"
        path.write_bytes(encode(Image.new("RGB", (2, 2))))

        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
        assert refusal(path).detected == "a file that may not be read"

    def test_other_objects_are_refused_with_a_hint(self) -> None:
        assert "cv2.imread" in str(refusal(None))
        assert "one by one" in str(refusal([b""]))
        assert refusal(7).detected == "a int"
        assert "mode 'rb'" in str(refusal(io.StringIO("hello")))
        closed = io.BytesIO(b"")
        closed.close()
        assert "cannot be read" in str(refusal(closed))
        assert refusal(io.BytesIO).detected == "the class BytesIO"
        assert refusal(Path).detected == "the class Path"

    def test_whatever_a_reader_raises_becomes_an_image_error(self) -> None:
        class Broken:
            def __init__(self, error: Exception) -> None:
                self.error = error

            def read(self, size: int = -1, /) -> bytes:
                raise self.error

        errors = (http.client.IncompleteRead(b"x", 9), RuntimeError("the camera is gone"), KeyError("x"), EOFError())
        for error in errors:
            caught = refusal(Broken(error))
            assert caught.__cause__ is error
            assert "cannot be read" in str(caught)
        assert "the camera is gone" in str(refusal(Broken(RuntimeError("the camera is gone"))))
        assert "EOFError" in str(refusal(Broken(EOFError())))

    def test_damaged_gzip_files_are_refused(self) -> None:
        packed = gzip.compress(encode(Image.fromarray(noise(20, 20))))
        corrupt = packed[:200] + bytes(40) + packed[240:]
        for data, cause in ((packed[:-100], EOFError), (corrupt, (zlib.error, OSError))):
            with gzip.open(io.BytesIO(data)) as file:
                assert isinstance(refusal(file).__cause__, cause)
        with gzip.open(io.BytesIO(packed)) as file:
            assert load_picture(file).width == 20

    def test_objects_that_misbehave_are_refused(self) -> None:
        class Everything:
            def __getattr__(self, name: str) -> object:
                raise RuntimeError(name)

        class Nowhere:
            def __init__(self, path: object) -> None:
                self.path = path

            def __fspath__(self) -> Any:
                if isinstance(self.path, Exception):
                    raise self.path
                return self.path

        class NotCallable:
            read = 7

        for picture in (Everything(), Nowhere(7), Nowhere(RuntimeError("gone")), NotCallable()):
            assert refusal(picture, index=4).index == 4
        assert "gone" in str(refusal(Nowhere(RuntimeError("gone"))))
        released = memoryview(b"abc")
        released.release()
        assert refusal(released).detected == "a released memoryview"

    def test_a_file_in_text_mode_is_told_to_be_opened_in_binary_mode(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jpg"
        path.write_bytes(encode(Image.fromarray(noise(8, 8)), "JPEG"))
        with path.open(encoding="utf-8") as file:
            error = refusal(file)
        assert "mode 'rb'" in str(error)
        assert "codec" not in str(error)


class TestTime:
    """Small files that made Pillow busy for seconds, or minutes."""

    @pytest.mark.parametrize("filler", [b" ", b"#", b"#\n", b"\n"])
    @pytest.mark.parametrize("magic", [b"P6", b"P5", b"P4", b"P3", b"P1", b"Pf"])
    def test_a_ppm_with_an_endless_header_is_refused_at_once(self, magic: bytes, filler: bytes) -> None:
        start_s = time.thread_time()
        assert refusal(magic + b"\n" + filler * 1_000_000).detected == "a PPM picture, damaged"
        assert time.thread_time() - start_s < 1

    def test_comments_of_a_ppm_are_skipped(self) -> None:
        assert first_pixel(b"P6 # 255 #\n# a\r1 1\n#" + b"x" * 3000 + b"\n255\n" + bytes([1, 2, 3])) == (1, 2, 3)
        plain = b"P3 # a\n" + b"#" * 9000 + b"\n1 1 255\n#" + b"#\n" * 500_000 + b" 1 # b\n2#c\n 3"
        start_s = time.thread_time()
        assert first_pixel(plain) == (1, 2, 3)
        assert time.thread_time() - start_s < 1
        assert load_picture(b"P6 60 60 255\n" + b"#" * 10800).width == 60
        assert load_picture(b"P4 99 999\n" + b" " * 13 * 999).width == 99

    def test_a_jpeg_that_declares_more_than_its_bytes_can_hold_is_refused_at_once(self) -> None:
        data = bytearray(encode(Image.fromarray(noise(64, 64)), "JPEG"))
        size = data.index(b"\xff\xc0") + 5
        data[size : size + 4] = struct.pack(">HH", 9000, 9000)
        assert "cannot hold the 9000x9000" in str(refusal(bytes(data)))
        data[size : size + 4] = struct.pack(">HH", 60000, 60000)
        assert refusal(bytes(data)).detected == "too many pixels"

    @pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True}, {"quality": 1}])
    def test_flat_jpegs_are_far_from_that_bound(self, options: dict[str, Any]) -> None:
        for mode in ("L", "RGB"):
            data = encode(Image.new(mode, (3000, 3000), "grey"), "JPEG", **options)
            assert load_picture(data).width == 3000
            assert 3000 * 3000 / len(data) < 300

    def test_a_flat_jpeg_of_the_largest_size_passes(self) -> None:
        data = encode(Image.new("L", (10_000, 10_000), 128), "JPEG", optimize=True)
        assert load_picture(data).pixels.shape == (10_000, 10_000, 3)

    def test_a_flood_of_scans_is_refused_but_a_video_after_the_picture_is_not(self) -> None:
        data = encode(Image.fromarray(noise(16, 16, 1)[:, :, 0]), "JPEG", progressive=True)
        start = data.rindex(b"\xff\xda")
        scan = data[start : data.rindex(b"\xff\xd9")]
        assert "scans" in str(refusal(data[:start] + scan * 101 + data[start:]))
        hidden = b"\xff\xfe\0\x04\xff\xd9"  # a comment that looks like the end
        assert "scans" in str(refusal(data[:start] + hidden + scan * 101 + data[start:]))
        assert load_picture(data + b"\xff\xda" * 1000).width == 16

    def test_junk_between_the_segments_of_a_jpeg_costs_no_time(self) -> None:
        image = Image.fromarray(noise(16, 16))
        data = encode(image, "JPEG")
        start_s = time.thread_time()
        for junk in (bytes(8_000_000), b"\xff" * 8_000_000, b"\xff\0" * 4_000_000):
            frame = load_picture(data[:2] + b"\xff\xfe\0\2" + junk + data[2:])
            assert np.array_equal(frame.pixels, load_picture(data).pixels)
        assert "segments" in str(refusal(data[:2] + b"\xff\xfe\0\2" * 2_000_000 + data[2:]))
        assert time.thread_time() - start_s < 2


class TestLimits:
    def test_a_bomb_is_refused_by_its_header_without_a_warning(self) -> None:
        for width, height in ((9600, 9600), (20000, 20000), (60000, 60000)):
            error = refusal(make_png(width, height, 8, 2, b""), limits=PictureLimits(max_pixels=50_000_000))
            assert f"{width}x{height}" in str(error)
            assert "50000000" in str(error)
            assert "pixels" in error.detected
        canvas = struct.pack("<I", 16382)[:3] * 2
        webp = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas
        assert refusal(webp).detected in ("too many pixels", "a WebP picture, damaged")
        assert "65535" in str(refusal(make_png(70000, 1, 8, 2, b"")))

    def test_pillows_own_limit_is_neither_used_nor_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
        assert load_picture(encode(Image.new("RGB", (64, 64), RED))).width == 64
        assert Image.MAX_IMAGE_PIXELS == 10

    def test_large_files_are_refused_unread(self, tmp_path: Path) -> None:
        limits = PictureLimits(max_file_bytes=1000)
        path = tmp_path / "large.bin"
        path.write_bytes(bytes(2000))
        for picture in (path, bytes(2000), bytearray(2000), memoryview(bytes(2000)), io.BytesIO(bytes(2000))):
            error = refusal(picture, limits=limits)
            assert error.detected == "too many bytes"
            assert "1000" in str(error)

    def test_a_stream_without_end_is_given_up(self) -> None:
        class Endless:
            def read(self, size: int = -1, /) -> bytes:
                return bytes(1 << 16)

        assert refusal(Endless(), limits=PictureLimits(max_file_bytes=1 << 20)).detected == "too many bytes"

    def test_arrays_and_images_in_memory_are_limited_too(self) -> None:
        limits = PictureLimits(max_pixels=100)
        assert refusal(np.zeros((11, 10, 3), np.uint8), limits=limits).detected == "too many pixels"
        assert refusal(Image.new("L", (11, 10)), limits=limits).detected == "too many pixels"
        frame = load_picture(np.zeros((11, 10, 3), np.uint8))
        assert refusal(frame, limits=limits).detected == "too many pixels"


class TestArrays:
    def test_rgb_and_bgr_differ_by_the_flag_only(self) -> None:
        rgb = noise(5, 7)
        assert np.array_equal(load_picture(rgb).pixels, rgb)
        assert np.array_equal(load_picture(rgb[:, :, ::-1], bgr=True).pixels, rgb)
        bgra = np.dstack([rgb[:, :, ::-1], np.full((5, 7), 255, np.uint8)])
        assert np.array_equal(load_picture(bgra, bgr=True).pixels, rgb)

    def test_files_are_not_concerned_by_the_flag_and_pillow_images_refuse_it(self) -> None:
        red = Image.new("RGB", (2, 2), RED)
        assert load_picture(encode(red), bgr=True).pixels[0, 0].tolist() == list(RED)
        with pytest.raises(RequestError, match="bgr"):
            load_picture(red, bgr=True)

    def test_grey_bool_and_alpha_are_understood(self) -> None:
        grey = noise(4, 6, 1)
        for array in (grey, grey[:, :, 0]):
            pixels = load_picture(array).pixels
            assert pixels.shape == (4, 6, 3)
            assert all(np.array_equal(pixels[:, :, channel], grey[:, :, 0]) for channel in range(3))
        assert first_pixel(np.ones((2, 2), bool)) == WHITE
        assert first_pixel(np.array([[[255, 0, 0, 0]]], np.uint8)) == WHITE
        assert first_pixel(np.array([[[65535, 0, 0, 65535]]], np.uint16)) == RED
        assert first_pixel(np.array([[[65535, 0, 0]]], ">u2")) == RED

    def test_an_array_and_a_png_with_alpha_give_the_same_pixels(self) -> None:
        rgba = noise(16, 16, 4)
        assert np.array_equal(load_picture(rgba).pixels, load_picture(encode(Image.fromarray(rgba))).pixels)

    @pytest.mark.parametrize("bgr", [False, True])
    @pytest.mark.parametrize("shape", [(6, 4, 3), (6, 1, 3), (6, 4, 4), (6, 4), (6, 4, 1)])
    def test_memory_is_never_shared(self, shape: tuple[int, ...], bgr: bool) -> None:
        base = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
        reversed_base = base[..., ::-1]
        for array in (base, base[::-1], base[:, ::-1], base[::2], np.asfortranarray(base), reversed_base):
            pixels = load_picture(array, bgr=bgr).pixels
            before = pixels.copy()
            assert not np.shares_memory(pixels, base)
            assert pixels.flags.c_contiguous
            assert not pixels.flags.writeable
            base ^= 255
            assert np.array_equal(pixels, before)

    def test_read_only_arrays_and_matrices_are_fine(self) -> None:
        array = noise(3, 3)
        array.setflags(write=False)
        assert np.array_equal(load_picture(array).pixels, array)
        assert load_picture(np.ma.masked_array(noise(3, 3))).width == 3

    @pytest.mark.parametrize(
        ("array", "hint"),
        [
            (np.zeros((4, 4, 3), np.float32), "255"),
            (np.zeros((4, 4, 3), np.int64), "astype"),
            (np.zeros((4, 4, 3), complex), "astype"),
            (np.zeros((4, 4, 3), object), "astype"),
            (np.zeros((3, 8, 9), np.uint8), "transpose"),
            (np.zeros((1, 8, 9, 3), np.uint8), "array[0]"),
            (np.zeros((4, 4, 2), np.uint8), "height, width"),
            (np.zeros((4, 4, 5), np.uint8), "height, width"),
            (np.zeros((), np.uint8), "height, width"),
            (np.zeros((0, 4, 3), np.uint8), "none"),
            (np.zeros((4, 0, 3), np.uint8), "none"),
            (np.frombuffer(encode(Image.new("RGB", (9, 9)), "JPEG"), np.uint8), "tobytes"),
        ],
    )
    def test_other_arrays_are_refused_with_a_hint(self, array: NDArray[Any], hint: str) -> None:
        assert hint in str(refusal(array))


class TestSources:
    def test_every_way_to_hand_a_picture_over_gives_the_same_pixels(self, tmp_path: Path) -> None:
        pixels = noise(6, 5)
        data = encode(Image.fromarray(pixels))
        path = tmp_path / "ein Bild.png"
        path.write_bytes(data)
        with path.open("rb") as file:
            pictures: list[tuple[Any, str]] = [
                (str(path), str(path)),
                (path, str(path)),
                (data, "<bytes>"),
                (bytearray(data), "<bytes>"),
                (memoryview(data), "<bytes>"),
                (io.BytesIO(data), "<BytesIO>"),
                (file, str(path)),
                (pixels, "<array>"),
                (Image.fromarray(pixels), "<pillow>"),
            ]
            for index, (picture, source) in enumerate(pictures):
                frame = load_picture(picture, index=index)
                assert np.array_equal(frame.pixels, pixels)
                assert (frame.source, frame.index) == (source, index)

    def test_a_frame_passes_through_and_a_broken_one_does_not(self) -> None:
        frame = load_picture(noise(2, 2))
        assert load_picture(frame, index=5) is frame
        broken = Frame(cast("NDArray[np.uint8]", np.zeros((2, 2), np.float32)), 0.0, 0.0)
        assert "float32" in str(refusal(broken))

    def test_a_lazy_pillow_image_is_decoded_and_named(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jpg"
        path.write_bytes(encode(Image.fromarray(noise(64, 64)), "JPEG"))
        with Image.open(path) as image:
            assert load_picture(image).source == str(path)
        path.write_bytes(path.read_bytes()[:-600])
        with Image.open(path) as image:
            assert re.search(r"a\.jpg.*damaged", str(refusal(image)))

    def test_a_closed_pillow_image_is_called_closed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.png"
        path.write_bytes(encode(Image.fromarray(noise(8, 8))))
        with Image.open(path) as unread:
            pass
        loaded = Image.new("RGB", (8, 8))
        loaded.close()
        with path.open("rb") as file:
            fileless = Image.open(file)
        for image in (unread, loaded, fileless):
            error = refusal(image)
            assert error.detected == "a closed Pillow image"
            assert "damaged" not in str(error)

    def test_times_come_from_the_moment_of_reading(self) -> None:
        first, second = load_picture(noise(2, 2)), load_picture(noise(2, 2))
        assert first.captured_s <= second.captured_s
        assert first.captured_wall_s > 1.5e9

    def test_many_threads_may_load_at_once(self) -> None:
        data = [encode(Image.fromarray(noise(32, 20 + number)), "JPEG") for number in range(8)]
        widths: list[int] = []
        threads = [threading.Thread(target=lambda one=one: widths.append(load_picture(one).width)) for one in data]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(widths) == list(range(20, 28))


@given(st.binary(max_size=64))
def test_every_run_of_bytes_has_a_kind(data: bytes) -> None:
    assert name_file_kind(data)
