"""The schema of device profiles: every key, with what it may hold. `docs/profiles.md` tells what each one does."""

from __future__ import annotations

from collections.abc import Mapping

from edge_vl.toml_file import Kind, flag, names, number, regex, text, whole

__all__ = ["KEYS", "PROVENANCE", "SCHEMA_VERSION", "WITHOUT_PROVENANCE"]

SCHEMA_VERSION = 1

PROVENANCE = "provenance"
"""The one table whose keys are not listed: they are the dotted names of the profile's own values."""

WITHOUT_PROVENANCE = ("schema", "id", "name", "match", "measured", PROVENANCE)
"""What needs no provenance: it names and finds the device, or is a record of its own."""

_MAX_MIB = 1 << 24
_NAME = r"[a-z0-9][a-z0-9_.-]*"
_WORD = "a short name of small letters, digits, `-`, `_` and `.`"


def _engines(lane: str) -> dict[str, Kind]:
    return {
        f"{lane}.threads": whole(1, 4096),
        f"{lane}.engines[].name": text(_NAME, _WORD, is_required=True),
        f"{lane}.engines[].dtypes": names(_NAME, 'a list of precisions, such as ["int8"]'),
        f"{lane}.engines[].device": text(),
        f"{lane}.engines[].any_cpu_flags": names(words="a list of CPU flags, as `edge-vl doctor` shows them"),
        f"{lane}.engines[].min_weights_mib": whole(0, _MAX_MIB),
    }


KEYS: Mapping[str, Kind] = {
    "schema": whole(SCHEMA_VERSION, SCHEMA_VERSION, is_required=True),
    "id": text(_NAME, _WORD, is_required=True),
    "name": text(is_required=True),
    "match[].arch": names(),
    "match[].compatible": names(words="a list of device tree names; `*` stands for any characters"),
    "match[].board_regex": regex(),
    "match[].cpu_regex": regex(),
    "match[].cpu_flags": names(),
    "match[].gpu_vendor": text("nvidia|amd", "`nvidia` or `amd`"),
    "match[].gpu_regex": regex(),
    "match[].compute_capability": names(),
    "match[].min_memory_mib": whole(0, _MAX_MIB),
    "match[].max_memory_mib": whole(0, _MAX_MIB),
    "match[].min_gpu_memory_mib": whole(0, _MAX_MIB),
    "match[].max_gpu_memory_mib": whole(0, _MAX_MIB),
    "memory.total_mib": whole(1, _MAX_MIB),
    "memory.unified": flag(),
    "memory.bandwidth_gbps": number(0.1, 100_000),
    "memory.reserve_mib": whole(0, _MAX_MIB),
    "memory.budget_fraction": number(0.05, 1),
    "power.min_w": number(0.1, 10_000),
    "power.max_w": number(0.1, 10_000),
    "power.modes": names(),
    "power.default_mode": text(),
    "power.sensor": text("ina3221|nvml|rapl|vcgencmd|none", "ina3221, nvml, rapl, vcgencmd or none"),
    **_engines("vision"),
    **_engines("language"),
    "kv": text(words="a KV policy such as `int8`, or a table"),
    "kv.text": text(),
    "kv.image": text(),
    "kv.first_layers": text(),
    "kv.last_layers": text(),
    "schedule.mode": text("auto|serial|interleaved|overlapped", "auto, serial, interleaved or overlapped"),
    "limits.context_length": whole(16, 1 << 24),
    "limits.max_image_tokens": whole(1, 1 << 20),
    "limits.longest_edge": whole(16, 1 << 16),
    "slo.first_token_s": number(0.001, 3600),
    "slo.token_s": number(0.0001, 60),
    "measured[].command": text(is_required=True),
    "measured[].date": text(r"\d{4}-\d\d-\d\d", 'a date as text, such as "2026-11-30"', is_required=True),
    "measured[].edge_vl": text(is_required=True),
    "measured[].result": text(is_required=True),
}
