"""PolicyConfig: the part of a tuning that names the policy and its arguments, checked by constructing it."""

from __future__ import annotations

import inspect
import json
import re
import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from adaptive_spec.policy import DepthPolicy, make_policy, policy_class, policy_names
from adaptive_spec.tuning_file import Location, Problem, TuningError, dotted_key, nearest, sentence


class PolicyConfig(BaseModel):
    """The policy and its constructor's arguments, beside its name.

    Attributes
    ----------
    name : str
        Entry-point name in the group ``adaptive_spec.policies``.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = "roofline-budget"

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any) -> Any:
        """Bring arguments to the form that they have in a file, so that a round trip compares equal."""
        try:
            return json.loads(json.dumps(data)) if isinstance(data, dict) else data
        except TypeError as error:
            raise ValueError(f"a policy's arguments must be numbers, words, lists and mappings: {error}") from error

    @property
    def params(self) -> dict[str, Any]:
        """The policy's own arguments."""
        return dict(self.model_extra or {})

    def make(self, max_depth: int, seed: int) -> DepthPolicy:
        """Construct the policy, ready for depths 0..`max_depth`.

        Raises
        ------
        TuningError
            If no such policy is installed, or it has no such argument, or can't serve these depths.
        """
        policy, problems = self.build(max_depth, seed)
        if policy is None:
            raise TuningError("\n".join(f"{dotted_key(p.location)}: {p.message}" for p in problems))
        return policy

    def build(self, max_depth: int, seed: int) -> tuple[DepthPolicy | None, list[Problem]]:
        """Make the policy as :meth:`make` does, or say all that hinders it."""
        names = policy_names()
        if self.name not in names:
            message = f"no policy is called {self.name!r}{nearest(self.name, names)}"
            return None, [Problem(("policy", "name"), message)]
        try:
            cls = policy_class(self.name)
        except (ImportError, AttributeError, TypeError) as error:
            return None, [Problem(("policy", "name"), f"policy {self.name!r} can't be loaded: {error}")]
        signature = inspect.signature(cls)
        known = list(signature.parameters)
        problems = [
            Problem(("policy", key), f"policy {self.name!r} has no such argument{nearest(key, known)}")
            for key in self.params
            if key not in known
        ]
        arguments = {key: value for key, value in self.params.items() if key in known}
        needed = [key for key, parameter in signature.parameters.items() if parameter.default is parameter.empty]
        missing = [key for key in needed if key not in arguments]
        if missing and not problems:
            problems = [Problem(("policy",), f"policy {self.name!r} needs the argument {key}") for key in missing]
        hints = _hints(cls)
        wrong: list[Problem] = []
        for key in list(arguments):
            if key in hints:
                arguments[key], found = _typed(arguments[key], hints[key], ("policy", key))
                wrong += found
        problems += wrong
        if missing or wrong:
            return None, problems
        try:
            policy = make_policy(self.name, **arguments)
            policy.reset(max_depth, seed)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            # The message usually begins with the argument that it is about; the line is then that argument's.
            first = re.match(r"\w*", str(error))
            named = first.group() if first is not None else ""
            location: Location = ("policy", named) if named in arguments else ("policy",)
            problems.append(Problem(location, str(error), depends=("max_depth",)))
        if problems:
            return None, problems
        return policy, []


def _hints(cls: type) -> dict[str, Any]:
    """Types of a policy's constructor arguments, as far as they can be resolved."""
    try:
        return typing.get_type_hints(inspect.unwrap(cls.__init__), include_extras=True)  # type: ignore[misc]
    except (NameError, TypeError):  # a name that only a type checker imports; reset() is the check then
        return {}


def _typed(value: Any, hint: Any, location: Location) -> tuple[Any, list[Problem]]:
    """Turn a YAML value into what a type hint asks for: lists into tuples, never words into numbers."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except Exception:  # a hint that pydantic can't check is no fault of the file
        return value, []
    try:
        return adapter.validate_python(value, strict=True), []
    except ValidationError:
        pass
    try:
        return adapter.validate_json(json.dumps(value, default=str), strict=True), []
    except ValidationError as error:
        first = error.errors()[0]
        return value, [Problem(location, sentence(first))]
