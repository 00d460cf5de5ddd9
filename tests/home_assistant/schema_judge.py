"""Judges discovery payloads by Home Assistant's own code. Run with the Python of an environment that has it.

Reads JSON `{"devices": [payload, ...], "samples": {topic: payload}}` from standard input; writes JSON
`{"faults": [...], "shown": {unique_id: what the entity's template makes of the sample}}`.

Home Assistant 2024.3 knows no payloads for whole devices, so what is shared is merged into each component as later
versions do, and the component is judged as one that was announced alone. What is around the components is judged by
the parts that 2024.3 has (device, origin, availability), and for the rest by its documentation: `device`, `origin` and
`components` are required, a component needs its `platform` and a `unique_id`, and an unknown key is a slip of ours.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from typing import Any

SHARED = ("availability", "availability_mode", "qos", "encoding", "state_topic", "command_topic")
OWN = {"device", "origin", "components"}


def judge_wrapper(payload: dict[str, Any]) -> list[str]:
    """Return what is wrong around the components."""
    mixins = importlib.import_module("homeassistant.components.mqtt.mixins")
    faults = [f"{key} is missing" for key in sorted(OWN - set(payload))]
    faults += [f"{key} is not known" for key in sorted(set(payload) - OWN - set(SHARED))]
    parts = (
        ("device", mixins.MQTT_ENTITY_DEVICE_INFO_SCHEMA, payload.get("device")),
        ("origin", mixins.MQTT_ORIGIN_INFO_SCHEMA, payload.get("origin")),
        (
            "availability",
            mixins.MQTT_AVAILABILITY_LIST_SCHEMA,
            {key: payload[key] for key in ("availability", "availability_mode") if key in payload},
        ),
    )
    for name, schema, part in parts:
        try:
            schema(part)
        except Exception as error:
            faults.append(f"{name}: {error}")
    for name in payload.get("components", {}):
        if re.fullmatch(r"[a-zA-Z0-9_-]+", name) is None:
            faults.append(f"{name!r} is no object id")
    return faults


def judge_component(name: str, payload: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return what is wrong with a component, and what Home Assistant reads in it."""
    given = {**{key: payload[key] for key in SHARED if key in payload}, **payload["components"][name]}
    given |= {"device": payload["device"], "origin": payload["origin"]}
    platform = given.pop("platform", None)
    if "unique_id" not in given:
        return [f"{name}: no unique_id"], {}
    try:
        read = importlib.import_module(f"homeassistant.components.mqtt.{platform}").DISCOVERY_SCHEMA(dict(given))
    except Exception as error:
        return [f"{name}: {error}"], {}
    faults = [f"{name}: {key} is not known to a {platform}" for key in sorted(set(given) - set(read))]
    return faults + [f"{name}: {fault}" for fault in judge_units(platform, read)], read


def judge_units(platform: str, read: dict[str, Any]) -> list[str]:
    """Return what newer versions refuse and 2024.3 only logs: units and state classes that do not fit."""
    if platform not in ("sensor", "number") or read.get("device_class") is None:
        return []
    const = importlib.import_module(f"homeassistant.components.{platform}.const")
    faults = []
    units = const.DEVICE_CLASS_UNITS.get(read["device_class"])
    if units is not None and read.get("unit_of_measurement") not in units:
        faults.append(f"unit {read.get('unit_of_measurement')!r} is none of {read['device_class']}")
    if platform == "sensor" and read.get("state_class") not in (
        None,
        *const.DEVICE_CLASS_STATE_CLASSES[read["device_class"]],
    ):
        faults.append(f"state class {read['state_class']!r} is none of {read['device_class']}")
    return faults


def shown(read: dict[str, Any], samples: dict[str, str], hass: Any) -> dict[str, Any]:
    """Return what an entity makes of the samples on its topics: its state, and whether it is available."""
    models = importlib.import_module("homeassistant.components.mqtt.models")
    seen: dict[str, Any] = {}
    topic = read.get("state_topic")
    if topic in samples:
        template = models.MqttValueTemplate(read.get("value_template"), hass=hass)
        seen["state"] = str(template.async_render_with_possible_json_value(samples[topic]))
    states = []
    for source in read.get("availability", []):
        template = models.MqttValueTemplate(source.get("value_template"), hass=hass)
        text = str(template.async_render_with_possible_json_value(samples.get(source["topic"], "")))
        states.append({source["payload_available"]: True, source["payload_not_available"]: False}.get(text))
    seen["available"] = None if None in states else all(states)
    return seen


async def main() -> None:
    """Judge."""
    hass = importlib.import_module("homeassistant.core").HomeAssistant(".")  # templates belong to one
    given = json.load(sys.stdin)
    faults: list[str] = []
    seen: dict[str, Any] = {}
    for payload in given["devices"]:
        faults += judge_wrapper(payload)
        for name in payload.get("components", {}):
            found, read = judge_component(name, payload)
            faults += found
            if read:
                seen[read["unique_id"]] = shown(read, given["samples"], hass)
    json.dump({"faults": faults, "shown": seen}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
