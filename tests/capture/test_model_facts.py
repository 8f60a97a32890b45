"""Facts on models: embeddings, biases that a norm takes out again, and the lines that made them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

PROGRAM = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)  # words
        self.places = nn.Embedding(10, 8, sparse=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1)
        self.drop = nn.Dropout(0.1)
        self.off = nn.Dropout(0.0)
        self.body = nn.Sequential(
            nn.Conv1d(8, 4, 1),  # conv
            nn.BatchNorm1d(4),
            nn.Conv1d(4, 4, 1, bias=False),
            nn.BatchNorm1d(4),
            nn.Conv1d(4, 4, 1),
            nn.GroupNorm(2, 4),
        )
        self.middle = nn.Linear(4, 6)  # linear
        self.norm = nn.BatchNorm1d(6)
        self.other = nn.Linear(6, 8)
        self.layer_norm = nn.LayerNorm(8)
        self.frozen = nn.Linear(8, 8)
        self.running = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        x = self.body(self.words(x).transpose(1, 2)).mean(2)
        return self.head(self.running(self.frozen(self.layer_norm(self.other(self.norm(self.middle(x)))))))

model = Words()
model.running.eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    optimizer.zero_grad()
    model(torch.randint(50, (4, 5))).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def words(launcher: Any, capture_kit: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Facts on the model of the program, and the lines of the program."""
    path = launcher.write(capture_kit["PRELUDE"] + PROGRAM)
    recorded = launcher.run(path.name)
    assert recorded.exit_code == 0, recorded.stderr
    (model,) = (each for each in recorded.facts()["models"] if each["class"] == "Words")
    return model, path.read_text().splitlines()


def line_of(created: dict[str, Any], lines: list[str]) -> str:
    return lines[created["line"] - 1].rpartition("# ")[2]


def test_embeddings_have_their_sizes_and_lines(words: tuple[dict[str, Any], list[str]]) -> None:
    model, lines = words
    first, second = model["embeddings"]
    assert (first["name"], first["num_embeddings"], first["embedding_dim"]) == ("words", 50, 8)
    assert (first["sparse"], first["tied"], first["trained"]) == (False, True, True)
    assert (second["name"], second["sparse"], second["tied"]) == ("places", True, False)
    assert line_of(first["created"], lines) == "words"


def test_biases_that_a_norm_subtracts_again(words: tuple[dict[str, Any], list[str]]) -> None:
    model, lines = words
    found = {each["name"]: each for each in model["bias_before_norm"]}
    assert set(found) == {"body.0", "middle"}  # not those before norms of other kinds, or with running statistics
    assert (found["body.0"]["class"], found["body.0"]["norm_class"], found["body.0"]["channels"]) == (
        *("Conv1d", "BatchNorm1d"),
        4,
    )
    assert line_of(found["body.0"]["created"], lines) == "conv"
    assert line_of(found["middle"]["created"], lines) == "linear"
    assert model["conv_bias_before_norm"] == ["body.0"]


def test_flags_of_either_interface_are_read() -> None:
    """Torch raises where the flags of one interface were set and those of the other are asked for."""
    from perfdoctor.capture.inject._perfdoctor_inject.machine_facts import allows_tf32

    class Refusing:
        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mixed")

    class Precision:
        fp32_precision = "tf32"

    class Switches:
        allow_tf32 = False

    assert allows_tf32(Refusing(), Precision()) is True
    assert allows_tf32(Refusing(), object()) is None
    assert allows_tf32(Switches(), Precision()) is False
