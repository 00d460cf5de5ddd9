"""What tests of edge_vl and of other people's engines are built from."""

from __future__ import annotations

from edge_vl.testing.byte_tokenizer import ByteTokenizer
from edge_vl.testing.engine_contract import EngineContract
from edge_vl.testing.fake_engine import FakeEngine
from edge_vl.testing.fake_faults import FakeCall, FakeFault, FakeLatencies

__all__ = ["ByteTokenizer", "EngineContract", "FakeCall", "FakeEngine", "FakeFault", "FakeLatencies"]
