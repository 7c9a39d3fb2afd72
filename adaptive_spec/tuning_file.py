"""TuningFile: one YAML file, that knows the line of every key and tells all that is wrong with it at once."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

Location: TypeAlias = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class Section(BaseModel):
    """A part of a tuning file: unknown keys are errors, values keep their types, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class TuningError(ValueError):
    """A tuning that can't serve; the message has one line for each thing that is wrong, with its remedy."""


@dataclass(slots=True, frozen=True)
class Problem:
    """One thing that is wrong: the key, and what was wrong with it and what would be right.

    Attributes
    ----------
    depends : tuple of str
        Other top-level keys that the verdict rests on.
    """

    location: Location
    message: str
    depends: tuple[str, ...] = ()


class InconsistentError(ValueError):
    """Settings of which each is valid alone; a model's validator raises it with all that it found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(f"{dotted_key(p.location)}: {p.message}" for p in problems))


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain scalars: `on` and `off` are words (`mode: on`), `1e-3` is a number."""


class _Dumper(yaml.SafeDumper):
    """Writes what :class:`_Loader` reads, lists of numbers in one line."""


_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_FLOAT = re.compile(
    r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
)
_INT = re.compile(r"^[-+]?[0-9]+$")
for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    # The first pattern that matches wins, so integers stand before floats.
    _class.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
    _class.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    flat = all(not isinstance(item, list | dict) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


_Dumper.add_representer(list, _represent_list)


class TuningFile:
    """The plain data of a YAML file, and where each part of it stands.

    Parameters
    ----------
    text : str
        The file's text.
    name : str
        What error messages call the file.

    Attributes
    ----------
    data : dict
        The top-level mapping (empty for an empty file).

    Raises
    ------
    TuningError
        If the text is no YAML mapping, or holds one key twice.
    """

    def __init__(self, text: str, name: str = "tuning") -> None:
        self.name = name
        self._lines: dict[Location, int] = {}
        loader = _Loader(text if text.strip() else "")
        try:
            root = loader.get_single_node()
            if root is not None:
                self._walk(root, (), set())
            data: Any = {} if root is None else loader.construct_document(root)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark is not None else ""
            raise TuningError(f"{name}{line}: this is no YAML: {error.problem or error.context}") from error
        except yaml.YAMLError as error:
            raise TuningError(f"{name}: this is no YAML: {error}".replace("\n", " ")) from error
        except TuningError:
            raise
        except ValueError as error:  # a scalar that looks like a number or a date and is none
            raise TuningError(f"{name}: this is no YAML: {error}") from error
        finally:
            loader.dispose()
        if not isinstance(data, dict):
            raise TuningError(f"{name}:1: a tuning file is a mapping of keys, not a {type(data).__name__}")
        self.data: dict[Any, Any] = data
        self._empty = root is None

    @classmethod
    def read(cls, path: str | Path) -> TuningFile:
        """Read a file; TuningError if it can't be read or isn't UTF-8."""
        try:
            return cls(Path(path).read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise TuningError(f"{path}: can't be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise TuningError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error

    def _walk(self, node: yaml.Node, location: Location, above: set[int]) -> None:
        if id(node) in above:
            raise TuningError(f"{self.name}:{node.start_mark.line + 1}: an alias that contains itself")
        above = above | {id(node)}
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise TuningError(f"{self.name}:{key.start_mark.line + 1}: a key must be a plain word")
                inner = (*location, key.value)
                if inner in self._lines:
                    dotted = dotted_key(inner)
                    raise TuningError(
                        f"{self.name}:{key.start_mark.line + 1}: {dotted}: is given twice, "
                        f"first in line {self._lines[inner]}; keep one of them"
                    )
                self._lines[inner] = key.start_mark.line + 1
                self._walk(value, inner, above)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._lines[*location, index] = item.start_mark.line + 1
                self._walk(item, (*location, index), above)

    def refuse_empty(self) -> None:
        """Raise TuningError if nothing stands in the file, or comments alone: it was likely cut short."""
        if self._empty:
            raise TuningError(
                f"{self.name}: is empty; write at least the settings that differ from the defaults, as `mode: on`"
            )

    def line(self, location: Location) -> int | None:
        """Line (from 1) of the deepest part of `location` that the file holds; None if it holds none."""
        for length in range(len(location), 0, -1):
            if location[:length] in self._lines:
                return self._lines[location[:length]]
        return None

    def problem(self, location: Location, message: str) -> str:
        """One line of an error message: file, line, dotted key, what was wrong."""
        line = self.line(location)
        place = self.name if line is None else f"{self.name}:{line}"
        return f"{place}: {dotted_key(location)}: {message}" if location else f"{place}: {message}"

    def validate(self, model: type[Model]) -> Model:
        """Return the file as a pydantic model.

        Raises
        ------
        TuningError
            One line for each thing that is wrong, in the order of the file.
        """
        data: Any = self.data
        found: dict[Location, Problem] = {}
        while True:
            try:
                # JSON's strict rules are right for YAML data: lists may become tuples, words no numbers.
                config = model.model_validate_json(json.dumps(data, default=str), strict=True)
            except ValidationError as error:
                faults = list(_faults(error, model))
                # Take what is faulty out and look again, so that one message tells all. A section of which
                # something was taken out is no longer what was written: no verdict on it as a whole.
                touched = {location[0] for location in found if location}
                for problem, whole in faults:
                    if not (whole and touched.intersection((problem.location[0], *problem.depends))):
                        found.setdefault(problem.location, problem)
                rest = _without(data, [p.location[:1] if whole else p.location for p, whole in faults])
                if rest == data:  # the faults lie in what the file leaves out
                    break
                data = rest
            else:
                if not found:
                    return config
                break
        raise self.error(found.values())

    def error(self, problems: Iterable[Problem]) -> TuningError:
        """The error that tells of these problems, in the order of the file."""
        ordered = sorted(problems, key=lambda problem: self.line(problem.location) or 0)
        return TuningError("\n".join(self.problem(problem.location, problem.message) for problem in ordered))


def _faults(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Problem, bool]]:
    """What pydantic found, in a user's words, and whether it is about settings that don't go together."""
    for item in error.errors():
        location: Location = item["loc"]
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, InconsistentError):
            for problem in cause.problems:
                yield problem, True
        elif item["type"] == "extra_forbidden":
            section: Any = model
            for part in location[:-1]:
                section = section.model_fields[part].annotation
            yield Problem(location, f"unknown key{nearest(str(location[-1]), section.model_fields)}"), False
        else:
            yield Problem(location, sentence(item)), False


def sentence(item: Mapping[str, Any]) -> str:
    """Word one of pydantic's errors: what would be right, and what stood there."""
    message = item["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "must be").rstrip(".")
    return message if item["type"] == "missing" else f"{message}, not {json.dumps(item['input'], default=str)}"


def nearest(word: str, known: Collection[str]) -> str:
    """Name the known word nearest to an unknown one, and all of them: the end of an error message."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    listed = ", ".join(known) or "none"
    return f"; did you mean {close[0]!r}? (known: {listed})" if close else f"; known: {listed}"


def _without(data: Any, locations: list[Location]) -> Any:
    """Copy of plain data without the keys at `locations`; below a list, the key that holds the list goes."""
    kept: dict[Any, Any] = {}
    for key, value in data.items():
        inner = [location[1:] for location in locations if location and str(location[0]) == str(key)]
        if not inner:
            kept[key] = value
        elif isinstance(value, dict) and all(inner):
            kept[key] = _without(value, inner)
    return kept


def dotted_key(location: Sequence[str | int]) -> str:
    """Write a location as it would be spoken of: ``policy.table[2].depth``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def write_yaml(data: dict[str, Any]) -> str:
    """Return plain data as YAML text that :class:`TuningFile` reads back as it was."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text
