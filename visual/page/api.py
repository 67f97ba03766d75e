"""Endpoints for programs beside the page: ``/compare``, ``/generate``, ``/compare_stream``. Everything else is private.

A call is a run like a click on Run, with the same waiting line, slot and limits. It ends within one decode step once
its client is gone. Its parameters are the fields of ``DecodingConfig``, so their names, types and defaults are those of
the command line; what they mean becomes the endpoint's documentation.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args, get_origin

import gradio as gr
from gradio.events import api
from gradio_client.utils import is_file_obj_with_meta
from pydantic import ValidationError

from specllava.config import DecodingConfig, one_line, short
from specllava.config import Limits
from specllava.metrics import RunTotals, compare, speedup, summarise
from specllava.race_file import race_json
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace
from visual.page.admission import RunRate, check_early
from visual.page.app_state import AppState
from visual.page.controls import FIELDS, SYSTEM, SYSTEM_OPTION, check_options, limit_option
from visual.page.model_choice import DRAFT, OWN, DraftChoices, chosen_models, read_draft
from visual.page.notices import text_of
from visual.page.pictures import NoPicture, PictureSource
from visual.page.race import SECONDS_PER_UPDATE, speculation_off
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import COMPUTE, RunInputs, RunKind, Update, run_updates, session_of, watch_call
from visual.page.uploads import uploaded_pictures
from visual.player.recorded import shorten_question
from visual.player.frames import Ending

if TYPE_CHECKING:
    from specllava.pair import Pair
    from visual.page.run import ZeroGPUPair

KINDS: Final = "a PNG, JPEG, WebP, BMP or GIF file"
IMAGE: Final = f"the picture: {KINDS} that was uploaded to this server; none where the question is about none"
QUESTION: Final = "what is asked"
MORE: Final = "more_images"
MORE_IMAGES: Final = "further pictures of the question, after image and in their order, uploaded likewise"
Traces = Mapping[str, DecodeTrace]


class FileMark(TypedDict):
    _type: Literal["gradio.FileData"]


class PictureFile(TypedDict):
    """File data of gradio: the path that uploading the picture was answered with, marked as what it is."""

    path: str
    meta: FileMark


class Answer(TypedDict):
    """An answer of one lane, of ``/generate``.

    ``seconds`` is decoding on the lane's own clock, the prompt's pass apart; ``tau`` is tokens per target pass.
    """

    answer: str
    tokens: int
    passes: int
    tau: float | None
    seconds: float
    ended: str | None


class Compared(TypedDict):
    """Both answers to one question, of ``/compare`` and ``/compare_stream``.

    ``ended`` is null while the lanes run, then ``finished``, ``deadline`` or ``stopped``; ``equal`` is null unless both
    lanes finished, and ``trace`` is the race file as JSON, there at the end.
    """

    target_only: Answer | None
    speculative: Answer | None
    equal: bool | None
    first_difference: int | None
    tau: float | None
    passes: int
    speed_up: float | None
    ended: str | None
    trace: dict[str, Any] | None


def answer_of(trace: DecodeTrace, ended: Ending | None) -> Answer:
    """Return one lane's answer with its costs; ``ended`` is ``None`` while it runs."""
    totals = summarise([trace])
    return Answer(
        answer=trace.text, tokens=totals.tokens, passes=totals.target_passes, tau=_number(totals.tau),
        seconds=totals.decode_seconds, ended=ended,
    )  # fmt: skip


def answer_one(traces: Traces, ended: Ending | None) -> Answer | None:
    """Return the answer of the only lane; ``None`` before it has begun."""
    return next((answer_of(trace, ended) for trace in traces.values()), None)


def answer_both(traces: Traces, ended: Ending | None) -> Compared:
    """Return both lanes' answers, and how they compare."""
    alone, together = traces.get(TARGET_ONLY), traces.get(SPECULATIVE)
    found = compare(alone, together) if alone and together and ended == "finished" else None
    lead = answer_of(together, ended) if together else None
    return Compared(
        target_only=answer_of(alone, ended) if alone else None,
        speculative=lead,
        equal=found.identical if found else None,
        first_difference=found.position if found else None,
        tau=lead["tau"] if lead else None,
        passes=lead["passes"] if lead else 0,
        speed_up=_number(speedup(summarise([alone]), summarise([together]))) if alone and together else None,
        ended=ended,
        trace=json.loads(race_json(alone, together)) if ended else None,
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of the API.

    Args:
        name: of the endpoint, without the slash.
        about: what it does, for people and for models that choose among tools.
        returns: type of the answer, and what that is.
        answer: makes the answer of the traces so far and of how the run ended, ``None`` while it runs.
        alone: only the answering lane runs, not the target beside it.
        streams: answers are sent while the run goes on, the last one complete.
    """

    name: str
    about: str
    returns: tuple[type, str]
    answer: Callable[[Traces, Ending | None], Any]
    alone: bool = False
    streams: bool = False


ENDPOINTS: Final = (
    Endpoint(
        "compare",
        "Answer a question about a picture, or about none, twice: by the target model alone and with speculative"
        " decoding, and compare: are both answers the same tokens, how many tokens did each pass of the target bring,"
        " how much faster was it. Takes seconds to minutes.",
        (Compared, "both answers, whether they are equal, tau (tokens per target pass), the target's passes, the"
         " speed-up, and the trace of both runs as a race file that the page opens"),
        answer_both,
    ),
    Endpoint(
        "generate",
        "Answer a question about a picture, or about none, with speculative decoding: the target model's own answer, in"
        " fewer passes.",
        (Answer, "the answer, its tokens, the target's passes, tau (tokens per target pass), and the decoding seconds"),
        answer_one, alone=True,
    ),
    Endpoint(
        "compare_stream",
        "Answer a question about a picture, or about none, twice as compare does, and send what both runs have said so"
        " far, about twice a second.",
        (Compared, "as of compare; ended and trace are null until the last one"),
        answer_both, streams=True,
    ),
)  # fmt: skip


class CallRun:
    """The run of a call.

    Args:
        events: of its lanes; drawn from and closed by the caller.
        leave: takes the request back; called once the client is gone.
    """

    def __init__(
        self, endpoint: Endpoint, backend: Pair | ZeroGPUPair, events: Generator[Any], is_wanted: Callable[[], bool],
        leave: Callable[[], None],
    ) -> None:  # fmt: skip
        self.events = events
        self._endpoint, self._backend, self._is_wanted, self._leave = endpoint, backend, is_wanted, leave
        self._past: list[Any] = []
        self._shown = time.monotonic()

    def show(self, event: Any) -> Update | None:
        """Take in an event. Return the answer so far if it is sent and it is time for that."""
        self._past.append(event)
        if not self._is_wanted():
            self._leave()
        now = time.monotonic()
        if not self._endpoint.streams or now - self._shown < SECONDS_PER_UPDATE:
            return None
        self._shown = now
        return self._endpoint.answer(self._traces(), None), ""

    def end(self, ending: Ending) -> Any:
        """Return the whole answer."""
        return self._endpoint.answer(self._traces(), ending)

    def summary(self) -> RunTotals | None:
        """Return the totals of the lane that answers, ``None`` if it has not begun."""
        *_, answer = (None, *self._traces().values())
        return None if answer is None else summarise([answer])

    def _traces(self) -> Traces:
        return self._backend.collect_race(self._past)


def connect_api(page: gr.Blocks, state: AppState) -> None:
    """Register the endpoints with the page that is being built."""
    rate = RunRate("calls", state.limits.calls_per_minute)
    for endpoint in ENDPOINTS:
        registered = api(
            _document(endpoint, _handler(endpoint, state, rate), state), api_name=endpoint.name,
            concurrency_id=COMPUTE, concurrency_limit=1,
        )  # fmt: skip
        check_early(page, registered["id"])


def call_kind(endpoint: Endpoint, state: AppState, leave: Callable[[], None]) -> RunKind:
    """Make the kind of run of a call."""
    is_wanted = watch_call()

    def start(inputs: RunInputs) -> CallRun:
        backend = state.backend_with(inputs.draft)
        absent = speculation_off(backend.info, inputs.config)
        if absent and not endpoint.alone:
            raise ValueError(f"drafter {inputs.config.drafter} drafts nothing here: choose another, or call /generate")
        config = replace(inputs.config, drafter="none") if absent else inputs.config
        begin = backend.answer if endpoint.alone else backend.race
        events = begin(inputs.picture.open(), inputs.messages, config)
        return CallRun(endpoint, backend, events, is_wanted, leave)

    return RunKind(endpoint.name, "the call", "", RunRequest, start)


def _handler(endpoint: Endpoint, state: AppState, rate: RunRate) -> Callable[..., Any]:
    """Make what answers a call: a generator where answers are streamed, otherwise a function."""

    names = [*FIELDS, *_more_parameters(state.choices)]

    def answers(request: gr.Request, image: Any, question: Any, *options: Any) -> Generator[Any]:
        try:
            rate.begin(request.client.host if request.client else "")
            asked = _request(image, question, dict(zip(names, options, strict=True)), state)
        except ValueError as refusal:
            line = one_line(refusal) if isinstance(refusal, ValidationError) else str(refusal)
            raise gr.Error(line, print_exception=False) from None
        yield from _answers(endpoint, state, session_of(request), asked)

    def last_answer(*values: Any) -> Any:
        *_, last = answers(*values)
        return last

    return answers if endpoint.streams else last_answer


def _answers(endpoint: Endpoint, state: AppState, session: str, asked: RunRequest) -> Generator[Any]:
    """Run a request and yield its answers.

    Raises:
        gr.Error: it has none; one line.
    """
    requests: RunRequests = state.requests
    key = session, f"{endpoint.name} {uuid.uuid4().hex}"  # a client may make several calls at once
    line, answered = "", False
    requests.request(key, asked)
    try:
        kind = call_kind(endpoint, state, lambda: requests.cancel(key))
        for value, notice in run_updates(requests, kind, key):
            line = notice
            if value is not None:
                answered = True
                yield value
    finally:
        requests.cancel(key)
    if not answered or text_of(line, "error"):
        raise gr.Error(text_of(line) or "nobody waits for this answer any more", print_exception=False)


def _request(image: Any, question: Any, options: dict[str, Any], state: AppState) -> RunRequest:
    """Check what a call sent, and make a request of it.

    Raises:
        ValueError: what can be changed, in one line.
    """
    if not isinstance(question, str) or not question.strip():
        raise ValueError("the question is empty: send a text")
    check_options(DecodingConfig(**{name: options[name] for name in FIELDS}), state.limits)
    draft = options.pop("draft", "")
    if draft and draft != state.choices.own:
        if options["drafter"] != OWN:
            raise ValueError(f"the drafter {options['drafter']} uses no draft model: leave draft or drafter out")
        options["drafter"] = f"{DRAFT}{draft}"
    images = [image, *_check_list(options.pop(MORE))]
    chosen_models(state.others, read_draft(options))
    return RunRequest(_pictures(images, state.limits), shorten_question(question), options)


def _check_list(images: Any) -> list[Any]:
    if images is not None and not isinstance(images, list):
        raise ValueError(f"{MORE} = {short(images)}: a list of pictures is expected")
    return images or []


def _pictures(images: Sequence[Any], limits: Limits) -> PictureSource:
    if list(images) == [None]:
        return NoPicture()
    for image in images:
        if not isinstance(image, dict) or not is_file_obj_with_meta(image):  # gradio has seen to it that it is uploaded
            raise ValueError(f"no picture came: image must be {IMAGE}")
    return uploaded_pictures([Path(str(image["path"])) for image in images], limits)


def _more_parameters(choices: DraftChoices) -> dict[str, tuple[Any, Any, str]]:
    """Return the parameters that are no options: default, type, what it is; of a draft where there is a choice."""
    about = f"the draft model, for the drafter model: {' or '.join(choices.all_drafts())}"
    draft: dict[str, tuple[Any, Any, str]] = {"draft": (choices.own, str, about)} if choices.drafts else {}
    return draft | {MORE: ([], list[PictureFile], MORE_IMAGES), SYSTEM: ("", str, SYSTEM_OPTION["help"])}


def _document(endpoint: Endpoint, handler: Callable[..., Any], state: AppState) -> Callable[..., Any]:
    """Give a handler the signature and the docstring of which gradio makes the endpoint's documentation."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        Parameter("request", kind, annotation=gr.Request),  # gradio's own, no parameter of the endpoint
        Parameter("image", kind, default=None, annotation=PictureFile | None),
        Parameter("question", kind, default="", annotation=str),
    ]
    lines = [endpoint.about, "", "Args:", f"    image: {IMAGE}", f"    question: {QUESTION}"]
    for name, info in FIELDS.items():
        default = limit_option(name, state.choices.tree.get(name, info.default), state.limits)
        listed = list(default) if isinstance(default, tuple) else default
        parameters.append(Parameter(name, kind, default=listed, annotation=_plain_type(info.annotation)))
        lines.append(f"    {name}: {info.title}. {info.description}")
    for name, (usual, annotation, about) in _more_parameters(state.choices).items():
        parameters.append(Parameter(name, kind, default=usual, annotation=annotation))
        lines.append(f"    {name}: {about}")
    returns, about = endpoint.returns
    lines += ["", "Returns:", f"    {about}"]
    documented: Any = handler
    documented.__name__ = endpoint.name
    documented.__doc__ = "\n".join(lines)
    documented.__signature__ = Signature(parameters, return_annotation=returns)
    documented.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": returns}
    return handler


def _plain_type(annotation: Any) -> Any:
    """Return an option's type as JSON has it: a list for a tuple, without bounds."""
    if get_origin(annotation) is not tuple:
        return annotation
    item = get_args(annotation)[0]
    return list[next(iter(get_args(item)), item)]  # type: ignore[misc]
