"""Certificates of a test's own, made with the `openssl` command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["has_openssl", "make_authority", "make_certificate"]


def has_openssl() -> bool:
    """Whether the command is installed."""
    return shutil.which("openssl") is not None


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> Path:
    """Make an authority that signs certificates, `<name>.pem` and `<name>.key`; return the former."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(certificate)),
    )
    return certificate


def make_certificate(folder: Path, name: str, authority: Path, *, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """Make a certificate for a host, and its key, signed by an authority."""
    certificate, key, request = (folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
    extensions = folder / f"{name}.ext"
    kind = "IP" if host[0].isdigit() else "DNS"
    extensions.write_text(f"subjectAltName={kind}:{host}\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(authority), "-CAkey", str(authority.with_suffix(".key"))),
        *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate)),
    )
    return certificate, key
