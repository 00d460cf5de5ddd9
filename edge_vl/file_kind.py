"""What a run of bytes is, in words, for people who passed the wrong file."""

from __future__ import annotations

__all__ = ["name_file_kind"]

_MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"GIF87a", "a GIF picture"),
    (b"GIF89a", "a GIF picture"),
    (b"II*\0", "a TIFF picture"),
    (b"MM\0*", "a TIFF picture"),
    (b"II+\0", "a TIFF picture"),
    (b"MM\0+", "a TIFF picture"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 picture"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 picture"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL picture"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"8BPS", "a Photoshop document"),
    (b"\0\0\1\0", "a Windows icon"),
    (b"qoif", "a QOI picture"),
    (b"\x76\x2f\x31\x01", "an OpenEXR picture"),
    (b"DDS ", "a DDS texture"),
    (b"%PDF-", "a PDF"),
    (b"%!PS", "a PostScript file"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"\0\0\1\xba", "an MPEG video"),
    (b"\0\0\1\xb3", "an MPEG video"),
    (b"\0\0\0\1", "a raw H.264 or H.265 video"),
    (b"OggS", "an Ogg file"),
    (b"fLaC", "a FLAC file"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"\x80\x04\x95", "a Python pickle"),
    (b"\x89HDF", "an HDF5 file"),
    (b"GGUF", "a GGUF model"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x7fELF", "a program"),
)

# Too short to be believed of something that is text.
_SHORT_MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"BM", "a BMP picture"),
    (b"FLV", "a Flash video"),
    (b"ID3", "an MP3 file"),
    (b"BZh", "bzip2 data"),
    (b"MZ", "a Windows program"),
)

_BRANDS: tuple[tuple[bytes, str], ...] = (
    (b"avif", "an AVIF picture"),
    (b"avis", "an AVIF picture"),
    (b"heic", "a HEIC picture"),
    (b"heix", "a HEIC picture"),
    (b"hevc", "a HEIC picture"),
    (b"heim", "a HEIC picture"),
    (b"mif1", "a HEIC picture"),
    (b"msf1", "a HEIC picture"),
    (b"qt  ", "a QuickTime video"),
)

_RIFF_KINDS: dict[bytes, str] = {b"WEBP": "a WebP picture", b"AVI ": "an AVI video", b"WAVE": "a WAV file"}

_TEXT_STARTS: tuple[tuple[str, str], ...] = (
    ("<!doctype html", "an HTML page"),
    ("<html", "an HTML page"),
    ("<head", "an HTML page"),
    ("<body", "an HTML page"),
    ("<svg", "an SVG drawing"),
    ("version https://git-lfs", "a Git LFS pointer: the real file was not fetched"),
    ("data:image", "a data URI: decode its base64 part first"),
    ("/9j/", "a JPEG picture in base64 text: decode it first"),
    ("ivborw0kggo", "a PNG picture in base64 text: decode it first"),
    ("{", "JSON text"),
    ("[", "JSON text"),
)

_LOOKED_AT_BYTES = 2048


def name_file_kind(data: bytes) -> str:
    """Name what the bytes of a file are, with an article: `a JPEG picture`, `an HTML page`, `unknown binary data`."""
    head = data[:_LOOKED_AT_BYTES]
    if not head:
        return "nothing: 0 bytes"
    if head[4:8] == b"ftyp":
        return next((name for brand, name in _BRANDS if head[8:12] == brand), "an MP4 video")
    if head[:4] == b"RIFF":
        return _RIFF_KINDS.get(head[8:12], "a RIFF file")
    if head[:1] == b"P" and head[1:2] in b"1234567" and head[2:3].isspace():
        return "a PPM picture"
    for magic, name in _MAGICS:
        if head.startswith(magic):
            return name
    text = _as_text(head)
    if text is not None:
        return _name_text(text)
    for magic, name in _SHORT_MAGICS:
        if head.startswith(magic):
            return name
    if not any(head):
        return "nothing but zero bytes"
    if len(data) > 376 and data[0] == data[188] == data[376] == 0x47:
        return "an MPEG transport stream"
    return "unknown binary data"


def _as_text(head: bytes) -> str | None:
    """Decode the bytes if they are text: no control characters, and UTF-8 or UTF-16 with a mark."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = head.decode(encoding)
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # else: a character cut in two by the limit
            return None
        text = head[: error.start].decode(encoding, errors="ignore")
    is_plain = all(character.isprintable() or character.isspace() for character in text)
    return text if text and is_plain else None


def _name_text(text: str) -> str:
    start = text.lstrip().lower()
    if start.startswith(("<?xml", "<!--", "<!doctype svg")):
        if "<svg" in start:
            return "an SVG drawing"
        return "an HTML page" if "<html" in start else "an XML file"
    for beginning, name in _TEXT_STARTS:
        if start.startswith(beginning):
            return name
    return "an HTML page" if "<html" in start or "</div>" in start else "text"
