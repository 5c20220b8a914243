"""Settings as they are gathered, and the step that makes a `Config` of them or names all that is wrong.

Where they are gathered from is the business of `config.load`.
"""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.describe import SECTIONS, SETTINGS, expected, nearest_setting, shown, shown_name
from config.schema import Config
from config.values import HIDDEN_LIMITS
from errors import ConfigError

MAX_PROBLEMS = 20


class Draft:
    """The settings given so far, the place that gave each, and the problems met on the way."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.places: dict[str, str] = {}
        self.problems: list[str] = []
        # Settings whose name was misspelt: their value is not known, so no conflict is blamed on them.
        self.doubtful: set[str] = set()

    def put(self, key: str, value: object, place: str) -> None:
        """Give the setting `key` a value, instead of any that it had."""
        self.values[key] = value
        self.places[key] = place

    def refuse(self, problem: str, place: str) -> None:
        """Remember a problem."""
        self.problems.append(f"{problem} ({place})")

    def refuse_unknown(self, key: str, place: str) -> None:
        """Remember that `key` names no setting, with the name that was probably meant."""
        if len(self.problems) >= MAX_PROBLEMS:
            self.refuse(key, place)  # only counted; looking for the nearest name takes a while
            return
        section = key.partition(".")[0]
        meant = nearest_setting(key)
        if key in SETTINGS:
            advice = f"write {key.partition('.')[2]} inside of the section {section}:"
        elif meant is not None:
            self.doubtful.add(meant)
            advice = f"did you mean {meant}?"
        elif section in SECTIONS:
            advice = f"{section} has {', '.join(SECTIONS[section].model_fields)}"
        else:
            advice = f"the sections are {', '.join(SECTIONS)}; --help lists all settings"
        self.refuse(f"{shown_name(key)} is not a setting; {advice}", place)

    def refuse_section(self, section: str, value: object, place: str) -> None:
        """Remember that a section was given a value as if it were a setting."""
        example = f"{section}.{next(iter(SECTIONS[section].model_fields))}"
        self.refuse(f"{section} must be a section with settings such as {example}, got {shown(value)}", place)

    def finish(self) -> Config:
        """The settings, with defaults for the rest. Raises `ConfigError` with all problems, one a line."""
        config, faults = validate(self.values)
        wrong = {setting_of(fault): fault["type"] for fault in faults if fault["type"] != "conflict"}
        for key, kind in wrong.items():
            self.refuse(wrong_value(key, self.values[key], kind), self.places[key])
        self.refuse_conflicts(without=wrong.keys() | self.doubtful)
        if config is None or self.problems:
            rest = len(self.problems) - MAX_PROBLEMS
            more = [f"and {rest} more"] if rest > 0 else []
            raise ConfigError("\n".join(self.problems[:MAX_PROBLEMS] + more))
        return config

    def refuse_conflicts(self, without: set[str]) -> None:
        """Remember which settings contradict each other, leaving out those `without` a usable value."""
        _, faults = validate({key: value for key, value in self.values.items() if key not in without})
        for fault in faults:
            keys = fault["ctx"]["keys"]
            if without.isdisjoint(keys):
                places = dict.fromkeys(self.places[key] for key in keys if key in self.places)
                self.refuse(fault["msg"], ", ".join(places))


def validate(values: dict[str, object]) -> tuple[Config | None, list[ErrorDetails]]:
    """The `Config` of values by dotted name, or None and the faults in them."""
    nested: dict[str, object] = {}
    for section in SECTIONS:
        nested[section] = {
            key.removeprefix(f"{section}."): value for key, value in values.items() if key.startswith(f"{section}.")
        }
    nested |= {key: value for key, value in values.items() if "." not in key}
    try:
        return Config.model_validate(nested), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def setting_of(fault: ErrorDetails) -> str:
    """The dotted name of the setting at fault; deeper in the location come members of unions and lists."""
    location = [str(part) for part in fault["loc"]]
    return ".".join(location[:2] if location[0] in SECTIONS else location[:1])


def wrong_value(key: str, value: object, kind: str) -> str:
    """What is wrong with a value, in words."""
    exceeded = [limit for limit in HIDDEN_LIMITS if kind == "less_than_equal" and f"le={limit}" in repr(SETTINGS[key])]
    limit = f", at most {exceeded[0]:.0f}" if exceeded else ""
    return f"{key} must be {expected(SETTINGS[key])}{limit}, got {shown(value)}"
