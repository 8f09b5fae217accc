"""Extension of a run with more updates or a different learning rate."""

import json
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from transformer_jax import config_files as configs
from transformer_jax.errors import InvalidInput
from transformer_jax.resolve import stated
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory, now
from transformer_jax.runs.listing import CELLS


class Extension(NamedTuple):
    """Changes of options with which a run continues from its newest whole checkpoint."""

    config: ConfigDict  # the new config
    step: int  # number of updates so far
    changed: dict[str, tuple[Any, Any]]  # full key -> (old value, new value)

    def write(self, directory: RunDirectory, facts: dict[str, Any]) -> None:
        """Records the extension in a run's directory, which this process has locked; idempotent.

        Each of the manifest's `legs` states an update at which options changed, the changes, and,
        if the run had ended there, its scores. `facts` identify the data.

        Raises:
          InvalidInput: The data differs from that of the run; nothing was written.
        """
        directory.refuse_other_data(facts)
        if not self.changed:
            return
        manifest = directory.manifest()
        at_end = self.step == directory.config().training.steps
        stored = directory.evaluation() if at_end else {}
        scores = {
            split: {name: v for name, v in stored[split].items() if isinstance(v, int | float)}
            for split in ("validation", "test")
            if split in stored
        }
        entry = {"from": self.step, "changed": self.changed, "scores": scores}
        leg = json.loads(json.dumps(entry))  # as it will be read back
        legs = manifest.get("legs", [])
        if not legs or {**legs[-1], "time": ""} != {**leg, "time": ""}:  # not again after a kill
            legs = [*legs, {**leg, "time": now()}]
        directory.step = self.step
        keys = sorted(stated(configs.flatten(self.config)))
        directory.write_json("manifest.json", manifest | {"legs": legs, "stated": keys})
        directory.write_status("interrupted")
        directory.write_text("config.json", configs.to_json(self.config))


def extension_of(
    config: ConfigDict, directory: RunDirectory, across_numerics: bool = False
) -> Extension:
    """Returns the changes with which a run continues under a new config; writes nothing.

    With `across_numerics`, a run that began with different numerics is accepted.

    Raises:
      InvalidInput: There is no run, the run is a cell of a study, options that must not change
        differ, no updates are left, or there is no checkpoint to continue from.
    """
    where = f"--workdir={directory.path}"
    if not directory.has_begun():
        raise InvalidInput(f"{where}: no run to extend; omit --extend to begin one")
    manifest = directory.manifest()
    if "cell" in manifest or CELLS in directory.path.absolute().parts:
        raise InvalidInput(
            f"{where}: a cell of a study is identified by its config, so it cannot be extended"
        )
    changed = configs.differences(
        directory.config(), config, but=(*configs.CADENCE, *configs.PLACEMENT)
    )
    for key, (before, after) in changed.items():
        if not configs.is_among(key, configs.EXTENDABLE):
            raise InvalidInput(
                f"{where}: --extend cannot change {key} from {before} to {after}\n"
                "it can change training.steps, optimizer.learning_rate and schedule"
            )
    checkpoints = Checkpoints(directory.file("checkpoints"), say=lambda message: None)
    step = checkpoints.newest_whole() if changed else max(checkpoints.steps(), default=0)
    if step is None:
        raise InvalidInput(
            f"{where}: no whole checkpoint to continue from; restore one, or use a new --workdir"
        )
    if changed and config.training.steps <= step:
        raise InvalidInput(
            f"{where}: training.steps={config.training.steps}: expected more than its {step}"
        )
    if changed and not across_numerics:
        directory.refuse_other_numerics(goes_on=True)
    return Extension(config, step, changed)
