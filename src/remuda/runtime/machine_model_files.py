"""Machine models by name or from a user's file. The core only parses; here the file is read.

A name with a slash in it, or one that ends like a JSON or YAML file, is a path. Nodes report their model by its name, so a user's
model may not take the name of one of this build: whoever reads the report could not tell which is meant.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import (
    MachineModel,
    known_machine_models,
    load_built_in_machine_model,
    parse_machine_model,
)

SUFFIXES = (".json", ".yaml", ".yml")
MAX_BYTES = 1 << 20


def names_machine_model_file(name: str) -> bool:
    return "/" in name or name.endswith(SUFFIXES)


def absolute_machine_model_file(name: str) -> str:
    """The name as it may be remembered: a path no longer depends on the working directory."""
    return str(Path(name).absolute()) if names_machine_model_file(name) else name


def resolve_machine_model_file(name: str) -> MachineModel:
    """The model of that name, or of the file at that path; Refusal UnknownMachineModel, InvalidMachineModel, ..."""
    if not names_machine_model_file(name):
        return load_built_in_machine_model(name)
    model = parse_machine_model(_read_model_file(Path(name)))
    if model.name in known_machine_models() and model != load_built_in_machine_model(model.name):
        raise Refusal(
            "MachineModelNameTaken",
            f"{name} calls itself `{model.name}`, which is a model of this build and not the same.",
            "Give your model a name of its own.",
            "model",
        )
    return model


def _read_model_file(path: Path) -> bytes | dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Refusal(
            "MachineModelUnreadable",
            f"The machine model file {path} cannot be read: {error.strerror or error}.",
            f"Check the path, or use one of: {', '.join(known_machine_models())}.",
            "model",
        ) from None
    if len(data) > MAX_BYTES:
        raise Refusal(
            "InvalidMachineModel", f"{path} is larger than {MAX_BYTES >> 20} MiB.", "It is not a model.", "model"
        )
    if path.suffix == ".json":
        return data
    try:
        body = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = str(error).splitlines()[0]
        raise Refusal("InvalidMachineModel", f"{path} is not YAML: {where}.", "Mend the file.", "model") from None
    return body if isinstance(body, dict) else b"null"
