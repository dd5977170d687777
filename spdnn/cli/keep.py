"""``--keep``: what a run makes stays in the data folder, and later runs take it from there."""

import argparse

from spdnn.challenge import FEATURES
from spdnn.errors import DataError
from spdnn.io import store
from spdnn.machine.provenance import cpu_model
from spdnn.run.plan_files import KeptPlans
from spdnn.run.team import Team
from spdnn.sources.features import SourcedFeatures
from spdnn.sources.folder import default_folder, made_folder, stored_inputs


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Add ``--keep``."""
    parser.add_argument(
        "--keep",
        action="store_true",
        help="write the plan and the official inputs into the data folder; later runs with that "
        "folder read them",
    )


def refuse_keep(arguments: argparse.Namespace) -> None:
    """Find out before any work whether nothing can be kept.

    Raises
    ------
    DataError
        If the folder cannot be written into, or the plan has a file of its own.
    """
    if not arguments.keep:
        return
    if arguments.plan is not None:
        raise DataError("--keep and --plan FILE would both keep the plan: leave one out")
    made_folder(arguments.data)


def kept_plans(arguments: argparse.Namespace, team: Team) -> KeptPlans | None:
    """The plans that are kept in the data folder; None if the plan has a file of its own.

    All ranks call this: plans are those of rank 0's processor.
    """
    processor = team.tell(cpu_model() if team.is_first else None)
    if arguments.plan is not None:
        return None
    return KeptPlans(arguments.data or default_folder(), processor, arguments.keep)


def keep_inputs(arguments: argparse.Namespace, features: SourcedFeatures, notes: list[str]) -> None:
    """Write official inputs into the data folder, if the user wants them kept.

    Parameters
    ----------
    arguments : argparse.Namespace
        The parsed options.
    features : SourcedFeatures
        The inputs of this run.
    notes : list of str
        What was written, or could not be, is added.
    """
    path = stored_inputs(arguments.data or default_folder(), features.features.n_neurons)
    if not arguments.keep or arguments.inputs is not None or features.source == str(path):
        return
    if not features.is_official or features.features.n_features != FEATURES:
        notes.append("inputs not kept: they are not the official ones, or not all of them")
        return
    try:
        store.write_features(path, features.features, is_official=True)
        notes.append(f"inputs kept: {path}")
    except DataError as error:
        notes.append(f"inputs not kept: {error}")
