"""The check for fields that nothing reads: it finds one, whatever its name, and is fooled by no copy."""

from dataclasses import dataclass, field, replace

from field_reads import FieldReads


@dataclass(frozen=True)
class Part:
    reward: float = 1.0
    size: int = 2


@dataclass(frozen=True)
class Whole:
    part: Part = field(default_factory=Part)
    reward: float = 3.0
    rounds: int = 4

    @property
    def twice(self) -> int:
        return 2 * self.rounds


def test_only_what_is_read_on_the_configuration_itself_counts():
    reads = FieldReads()
    config = reads.watch(Whole())
    assert config.part.size == 2
    assert reads.unread(config) == {"part.reward", "reward", "rounds"}
    assert config.twice == 8
    assert config.reward == 3.0
    assert reads.unread(config) == {"part.reward"}, "another field of that name was read"


def test_copies_and_comparisons_read_nothing():
    reads = FieldReads()
    config = reads.watch(Whole())
    other = replace(config, rounds=5)
    assert config != other
    assert config == replace(other, rounds=4)
    assert {config: 1}[replace(other, rounds=4)] == 1
    assert reads.names == set()
    assert replace(config, rounds=7).rounds == 7
    assert reads.names == {"rounds"}
