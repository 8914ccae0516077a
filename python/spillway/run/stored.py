"""A run that is not going on, as its output_dir and its storage paths tell of it: for `verify` and `export`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spillway._engine import Description, Engine, Network, World
from spillway.base import silence
from spillway.base.documents import read_text
from spillway.config import Config
from spillway.config.checks import check_storage
from spillway.errors import InputError
from spillway.output import identity, volumes
from spillway.output.identity import DESCRIPTION, Identity
from spillway.output.known_runs import describe_missing_identity, load_identity
from spillway.run.shards import Shard, shards_of


@dataclass(frozen=True)
class StoredRun:
    """Nothing of it is profiled, and no data is read."""

    config: Config
    identity: Identity

    @property
    def output_dir(self) -> Path:
        return Path(self.config.output_dir)

    @property
    def shards(self) -> list[Shard]:
        return shards_of(self.config, self.identity)

    def volumes(self) -> list[Path]:
        """The volumes that may hold a durable step."""
        if self.identity.durability == "none":
            return []
        return [volume for shard in self.shards for volume in volumes.present(shard.config.paths)]

    def description(self) -> Description:
        """The description of the model that the engine received."""
        path = self.output_dir / DESCRIPTION
        try:
            return Description.parse(read_text(path))
        except (OSError, ValueError) as error:
            raise InputError(f"output_dir: {path} cannot be read: {error}") from None

    @contextmanager
    def engine(self, shard: Shard | None = None, port: Network | None = None) -> Iterator[Engine]:
        """The engine of a shard of this run's model, planned but not started; None: of a run of one process. `port`: to
        those of the others, where there are any."""
        from spillway.base import calls
        from spillway.run.settings import reading_settings

        config = self.config if shard is None else shard.config
        ranks = config.ranks
        description = self.description()
        if ranks.world > 1:
            description.world = World(size=ranks.world, rank=ranks.rank, local=description.world.local)
        settings = reading_settings(config, self.identity.run)
        with calls.translated(reading=True):
            ports = [port] if port is not None else []
            engine = calls.native_engine()(description, settings, *ports)
            try:
                with silence.watched([path.place for path in config.paths]):
                    yield engine
            finally:
                engine.close()


def stored(config: Config) -> StoredRun:
    """InputError where `output_dir` holds no run."""
    output_dir = Path(config.output_dir)
    known = load_identity(output_dir, paths=config.paths)
    if known is None:
        words = describe_missing_identity(output_dir, config.paths)
        raise InputError(
            f"output_dir: {words or f'{output_dir} holds no run (there is no {output_dir / identity.RUN})'}"
        )
    if not known.several:
        check_storage(config)
    return StoredRun(config.replaced(durability=known.durability, overwrite=False), known)
