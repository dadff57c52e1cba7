import json

import pytest
import yaml

from covey.files import checksum_holds, stamp_json, stamp_yaml

JSON = [
    stamp_json(json.dumps({"a": 1, "b": [0.5, None]})),
    stamp_json(json.dumps({"a": {"b": 2}}, indent=2)),
    stamp_json("{}"),
]
YAML = [stamp_yaml(yaml.safe_dump({"seed": 0, "task": {"name": "a/b"}}))]


@pytest.mark.parametrize("text", JSON + YAML)
def test_stamped_text_is_valid_and_holds(text: str) -> None:
    assert checksum_holds(text.encode()) is True
    content = json.loads(text) if text in JSON else yaml.safe_load(text)
    assert ("crc32" in content) == (text in JSON)


@pytest.mark.parametrize("text", JSON + YAML)
def test_every_flipped_bit_is_noticed_or_harmless(text: str) -> None:
    load = json.loads if text in JSON else yaml.safe_load
    for bit in range(8 * len(text)):
        content = bytearray(text.encode())
        content[bit // 8] ^= 1 << bit % 8
        try:
            same = load(bytes(content).decode()) == load(text)
        except (ValueError, yaml.YAMLError):
            continue
        assert same or checksum_holds(bytes(content)) is False, bytes(content)


@pytest.mark.parametrize("text", ["", "{}", "seed: 0\n", '{"a": 1}', '{"frame": 123}', '[{"crc32": 1}]'])
def test_text_without_a_stamp(text: str) -> None:
    assert checksum_holds(text.encode()) is None
