"""Race files, as examples, visitors and the command line have them.

A race file is one JSON document, ``{"image": "picture.png", "target_only": trace, "speculative": trace}``. The page
and ``compare --trace`` write it. One lane may be missing, and the bare trace of one lane is read as well.
A dialogue is ``{"dialogue": [race, race, …]}``, its turns in order; a later turn has an ``image`` only if another
picture came with its message. ``image`` may be missing; if a picture of that name lies beside the file it belongs to
the race. Files come from anywhere, so everything that drawing relies on is checked here, once for all readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from specllava.config import RULE_CHOICES, DecodingConfig, short, upper_bound
from specllava.trace import DecodeTrace, StepTrace, read_trace
from specllava.trace_fields import parse_json
from visual.player.labels import strip_bidi

MAX_STEPS = 1024  # of one lane, over all turns of a dialogue, and so the next three
MAX_NODES = 6_000  # of all trees: with as many pruned guesses, about a second to draw
MAX_PRUNED = 6_000  # of all steps
MAX_DRAWS = 6_000  # of all steps
MAX_DRAW_TOKENS = 32  # that one draw names
MAX_TREE = upper_bound("nodes") + 1  # the most that the options allow, and the root
MAX_TOKEN_CHARACTERS = 512
MAX_ANSWER_CHARACTERS = 500_000
MAX_PROMPT_CHARACTERS = upper_bound("prompt_characters")
MAX_NAME_CHARACTERS = 200
MAX_SECONDS = 1e6
LOG_PROBS = (-1e4, 1e-6)  # nats; rounding may carry a sum a little above 0
ENTROPIES = (-1e-3, 100.0)  # nats


def check_lane(lane: str, trace: DecodeTrace) -> None:
    """Refuse a well-formed lane that holds more than can be drawn.

    Raises:
        ValueError: one line that begins with ``lane``, its name.
    """
    setting = trace.setting
    draws = [draw for step in trace.steps for draw in step.draws]
    sizes = (
        *_sizes(trace.steps),
        ("tokens in one draw", max((len(draw.tokens) for draw in draws), default=0), MAX_DRAW_TOKENS),
        ("nodes in one tree", max((len(step.tree) for step in trace.steps), default=0), MAX_TREE),
        ("characters of prompt", len(trace.prompt), MAX_PROMPT_CHARACTERS),
        ("characters in one token", max(map(len, trace.texts.values()), default=0), MAX_TOKEN_CHARACTERS),
        ("characters of answer", sum(len(trace.texts[t]) for t in trace.token_ids), MAX_ANSWER_CHARACTERS),
        ("characters in a name", max(map(len, (setting.pair, setting.device, setting.dtype))), MAX_NAME_CHARACTERS),
        ("seconds", min(sum((step.seconds.total for step in trace.steps), trace.prefill.total), 1e18), MAX_SECONDS),
    )
    _check(lane, sizes)
    for number, step in enumerate(trace.steps, start=1):
        if step.target is None:
            raise ValueError(f"{lane}, step {number}: it did not record what the target thought of every node")
        guesses = (*step.tree.log_probs, *(guess.log_prob for guess in step.pruned))
        entropies = [entropy for entropy in step.tree.entropies if entropy is not None]
        for what, values, (low, high) in (
            ("a log-probability", guesses, LOG_PROBS), ("an entropy", entropies, ENTROPIES),
        ):  # fmt: skip
            odd = next((value for value in values if not low <= value <= high), None)
            if odd is not None:
                side = f"above {round(high)}" if odd > high else f"below {round(low)}"
                raise ValueError(f"{lane}, step {number}: {what} of {odd:g} is {side}")


def _sizes(steps: Sequence[StepTrace]) -> tuple[tuple[str, float, float], ...]:
    return (
        ("steps", len(steps), MAX_STEPS),
        ("tree nodes", sum(len(step.tree) for step in steps), MAX_NODES),
        ("pruned guesses", sum(len(step.pruned) for step in steps), MAX_PRUNED),
        ("draws", sum(len(step.draws) for step in steps), MAX_DRAWS),
    )


def _check(whose: str, sizes: Iterable[tuple[str, float, float]]) -> None:
    for what, count, most in sizes:
        if count > most:
            raise ValueError(f"{whose} has {count:,.0f} {what}, and at most {most:,.0f} can be shown")


def check_question(question: str, most: int = MAX_PROMPT_CHARACTERS) -> None:
    """Refuse a question that is too long to be read.

    Raises:
        ValueError: it has more than ``most`` characters.
    """
    if len(question) > most:
        raise ValueError(f"the question has more than {most:,} characters: shorten it")


LANES = ("target_only", "speculative")
KEYS = ("image", *LANES)
MAX_BYTES = upper_bound("trace_bytes")
MAX_TURNS = 16  # of a dialogue
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A race that was run before, or one lane of it.

    Args:
        name: of its file, without the ending.
        image: the picture's file, if it lies beside the race's.
        filled: which options the file leaves open and what was filled in, in words; "" if none, as in most files.
        image_name: the picture that the file names, there or not; "" if it names none.
        later: the turns of a dialogue that this race is the first turn of.
    """

    name: str
    image: Path | None
    target_only: DecodeTrace | None
    speculative: DecodeTrace | None
    filled: str = ""
    image_name: str = ""
    later: tuple[Recorded, ...] = ()

    @property
    def turns(self) -> tuple[Recorded, ...]:
        """The turns of the dialogue, this one first."""
        return (self, *self.later)

    @property
    def pictures(self) -> list[Path | None]:
        """The file of the picture that each turn is about, the last that came until then."""
        pictures: list[Path | None] = [None]
        for turn in self.turns:
            pictures.append(turn.image if turn.image_name else pictures[-1])
        return pictures[1:]

    @property
    def lead(self) -> DecodeTrace:
        """The lane whose steps are drawn: the speculative one, if there is one."""
        lead = self.speculative or self.target_only
        assert lead is not None  # a file without lanes is refused
        return lead

    @property
    def lanes(self) -> dict[str, DecodeTrace]:
        """The lanes that there are, by their names in the file."""
        lanes = {"target_only": self.target_only, "speculative": self.speculative}
        return {name: trace for name, trace in lanes.items() if trace is not None}

    @property
    def prompt(self) -> str:
        """The question, the same in every lane."""
        return self.lead.prompt


def titles(races: Sequence[Recorded]) -> list[str]:
    """Return what examples are called: their questions, and where there are several pairs, each one's own."""
    several = len({race.lead.setting.pair for race in races}) > 1
    return [strip_bidi(_title(race) + (f" (pair {race.lead.setting.pair})" if several else "")) for race in races]


def _title(race: Recorded) -> str:
    return f"A dialogue of {len(race.turns)} questions: {race.prompt}" if race.later else race.prompt


def read_recorded(path: Path, most: int | None = None) -> Recorded:
    """Read and check a race file of at most ``most`` bytes, ``MAX_BYTES`` by default; its picture is optional.

    Raises:
        ValueError: unreadable, too large, not JSON, a part is missing, unknown or inconsistent, or more than can be
            drawn; one line that names the file.
    """
    name = "".join(character for character in path.name if character.isprintable())[-MAX_NAME_CHARACTERS:]
    try:
        _check_size(path.stat().st_size, MAX_BYTES if most is None else most)
        race = recorded_race(path.stem, path.read_bytes())
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{name} is not a recorded race: {error}") from error
    first, *later = (replace(one, image=_picture_beside(path, one.image_name)) for one in (race, *race.later))
    return replace(first, later=tuple(later))


def recorded_race(name: str, data: bytes) -> Recorded:
    """Read and check the contents of a race file, such as a run has just made; pictures are named, and lie nowhere.

    Raises:
        ValueError: as :func:`read_recorded`.
    """
    _check_size(len(data), MAX_BYTES)
    turns = _parse(name, data)
    for turn in turns:
        if len({trace.prompt for trace in turn.lanes.values()}) > 1:
            raise ValueError("its lanes answer different prompts")
        for lane, trace in turn.lanes.items():
            check_lane(lane, trace)
    _check_dialogue(turns)
    first, *later = turns
    # A later turn's trace names every picture of the dialogue, a first one's its own.
    return replace(first, image_name=first.image_name or first.lead.image or "", later=tuple(later))


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"it has {size:,} bytes, and at most {most:,} are read")


def _parse(name: str, data: bytes) -> list[Recorded]:
    """Parse a race file into its turns: one, but for a dialogue."""
    document = parse_json(data)
    if not isinstance(document, dict):
        raise ValueError("it holds no JSON object")
    if "dialogue" not in document:
        return [_parse_race(name, document)]
    races = document["dialogue"]
    if len(document) > 1 or not isinstance(races, list) or not all(isinstance(race, dict) for race in races):
        raise ValueError('a dialogue is {"dialogue": [race, …]}, and nothing else')
    if not 1 <= len(races) <= MAX_TURNS:
        raise ValueError(f"the dialogue has {len(races):,} turns, and 1 to {MAX_TURNS} can be shown")
    turns = []
    for number, race in enumerate(races, start=1):
        try:
            turns.append(_parse_race(name, race))
        except ValueError as error:
            raise ValueError(f"turn {number}: {error}") from error
    return turns


def _check_dialogue(turns: Sequence[Recorded]) -> None:
    """Refuse turns that do not follow one another, or hold more together than can be drawn."""
    if len(turns) < 2:
        return
    for number, turn in enumerate(turns):
        odd = next((trace.turn for trace in turn.lanes.values() if trace.turn != number), None)
        if odd is not None:
            raise ValueError(f"turn {number + 1} was recorded as turn {odd + 1} of its dialogue")
    for lane in LANES:
        steps = [step for turn in turns if lane in turn.lanes for step in turn.lanes[lane].steps]
        _check(f"the dialogue's {lane}", _sizes(steps))


def _parse_race(name: str, document: dict[str, Any]) -> Recorded:
    if "steps" in document or "prefill" in document:
        trace = read_trace(document)
        filled = _name_filled({"the trace": document})
        alone = trace.drafter is None and trace.config.drafter == "none"
        return Recorded(name, None, trace if alone else None, None if alone else trace, filled)
    unknown = [key for key in document if key not in KEYS]
    if unknown:
        raise ValueError(
            f"{short(unknown[0])} is {f'one of {len(unknown):,} keys' if len(unknown) > 1 else 'a key'} that no race"
            f" file has: known are {', '.join(KEYS)}; the file may be of a newer specllava that knows it"
        )
    lanes = {lane: document[lane] for lane in LANES if document.get(lane) is not None}
    if not lanes:
        raise ValueError("it has neither a target_only nor a speculative lane")
    image = document.get("image")
    if image is not None and not isinstance(image, str):
        raise ValueError(f"image = {short(image)}: it must be the name of a file")
    traces = {key: read_trace(lane, key) for key, lane in lanes.items()}
    filled = _name_filled(lanes)
    return Recorded(name, None, traces.get("target_only"), traces.get("speculative"), filled, image or "")


def _name_filled(lanes: Mapping[str, Any]) -> str:
    """Name the options that lanes leave open; ``lanes`` are valid. Those that only other rules read do not count."""
    parts = []
    for lane, document in lanes.items():
        given = {*document["config"], *_of_other_rules(document["config"].get("rule"))}
        missing = [f for f in fields(DecodingConfig) if f.name not in given]
        if missing:
            parts.append(f"{lane} does not say {', '.join(f'{f.name} (now {f.default})' for f in missing)}")
    return f"{'; '.join(parts)}: today's defaults stand in their place" if parts else ""


def _of_other_rules(rule: str | None) -> set[str]:
    """Return the options that only other rules read; none if the rule is not known here."""
    if rule is None or rule not in RULE_CHOICES:
        return set()
    return {name for choice in RULE_CHOICES.values() for name in choice.options} - {*RULE_CHOICES[rule].options}


def _picture_beside(path: Path, named: str) -> Path | None:
    if not named or len(named) > MAX_NAME_CHARACTERS or not named.isprintable():
        return None
    picture = path.parent / Path(named).name
    return picture if picture.suffix.lower() in PICTURES and picture.is_file() else None
