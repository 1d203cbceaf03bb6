"""Requests and responses of the HTTP API as pydantic models, and request validation."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.http.guard import Problem
from serving.texts import readable
from xcmodels.data.text import clean
from xcmodels.retrieval.selection import NoBranches, UnknownEntry, UnknownLabel

MAX_TEXTS, MAX_TEXT, MAX_LABELS = 256, 1 << 16, 100    # texts of a request, bytes of a text, labels of a text
MAX_EXPLAINED = 100                        # explained labels of a request, k for each text
MAX_UID = 4096                             # characters of a label's uid
MAX_LISTED = 50_000                        # labels and branches that a request lists in each of two lists
MAX_FIELDS = 1024                          # fields of a body that are looked at
MAX_ERRORS = 8                             # errors that a problem lists
UNKNOWN = "extra_forbidden"                # pydantic's type of error for an unknown field
NO_OBJECT = ("model_type", "dict_type")    # and for what is no object
LISTS = ("only", "without")
PLAIN = re.compile(r"/[A-Za-z][A-Za-z0-9_-]{0,31}")
EXAMPLE = "a large wild cat with a mane"

M = TypeVar("M", bound=BaseModel)
Text = Annotated[str, Field(description=f"At most {MAX_TEXT:,} bytes of UTF-8")]
Uid = Annotated[str, Field(min_length=1, max_length=MAX_UID)]
Branch = Annotated[dict[Literal["under"], str], Field(min_length=1)]
Entries = Annotated[list[str | Branch], Field(max_length=MAX_LISTED, fail_fast=True)]
ENTRY = 'must be a uid, or {"under": uid} for a branch of the vocabulary'


class PredictRequest(BaseModel):
    """Texts to tag."""

    model_config = ConfigDict(extra="forbid", strict=True)
    texts: list[Text] = Field(min_length=1, max_length=MAX_TEXTS)
    k: int = Field(10, ge=1, le=MAX_LABELS, description="Labels of each text")
    threshold: float = Field(0.0, ge=0, le=1, description="Least confidence of a label; a text may get none")
    only: Entries | None = Field(None, description=(
        "Labels to choose from, by uid; {\"under\": uid} is a concept of the vocabulary and all that is narrower. By "
        "default all, and of an empty list none"))
    without: Entries = Field([], description="Labels to leave out, given as those of `only`; the next best take their "
                                             "places")
    explain: bool = Field(False, description="Say what each score is made of, and the training texts of the label that "
                                             f"are nearest; of at most {MAX_EXPLAINED} labels, k of each text")


class FeedbackRequest(BaseModel):
    """A reviewer's decision on the labels of one text; a label that is named nowhere was not judged."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: Text
    accepted: list[Uid] = Field([], max_length=MAX_LABELS, description="Labels of the answer that are right, by uid")
    rejected: list[Uid] = Field([], max_length=MAX_LABELS, description="Labels of the answer that are wrong")
    added: list[Uid] = Field([], max_length=MAX_LABELS, description="Labels that are right and were not in the answer")
    request_id: str = Field("", pattern="^[A-Za-z0-9._-]{0,64}$", description="X-Request-ID of the answer")
    version: str = Field("", pattern="^[0-9]{0,9}$", description="Version that gave the answer; the present one, by "
                                                                 "default")


class Kept(BaseModel):
    """How many labels of a decision are on the server's disk, for the next training to learn from."""

    accepted: int
    rejected: int
    added: int


class NearText(BaseModel):
    """A training text of a label, near the text that was asked about."""

    text: str
    similarity: float = Field(description="Cosine of the embeddings, -1 to 1")
    labels: list[str] = Field(description="The labels that it has")


class Found(BaseModel):
    """A label of a text; the last four where they were asked for."""

    id: int = Field(description="Line in the label file, from 0")
    uid: str
    text: str
    score: float
    confidence: float = Field(description="Chance that the label is right, 0 to 1; rises with the score, and means the "
                                          "same for every version")
    parts: dict[str, float] | None = Field(None, description="What the score is the sum of")
    words: dict[str, float] | None = Field(None, description="Words of the text that spoke most for the label or "
                                           "against it, and what they add to the log-odds of the part \"sparse\"")
    frequency: int | None = Field(None, description="Training texts that have the label")
    nearest: list[NearText] | None = None


class Answer(BaseModel):
    """The labels of one text, best first; none for white space alone, and none where none is as sure as asked for."""

    labels: list[Found]


class ModelName(BaseModel):
    """Which version answers: its name and number, the digest of its files, and of the data it was trained on."""

    name: str
    version: str
    digest: str
    data: str


class Answers(BaseModel):
    """An answer a text, in order, all of one version."""

    model: ModelName
    results: list[Answer]


class ModelFacts(ModelName):
    """What answers at present, a few texts of its test set, and why the alias cannot be followed, if so."""

    labels: int
    examples: list[str]
    calibrated: bool = Field(description="Whether confidences were fitted on held-out queries; else they order labels, "
                                         "and are no chances")
    fault: str
    feedback: bool = Field(description="Whether POST /feedback is taken")


class Wrong(BaseModel):
    """A field, as a JSON pointer, and what is wrong with it."""

    pointer: str
    detail: str


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    link: str
    errors: list[Wrong] | None = None


def checked(body: Any) -> PredictRequest:
    """Validate the body of /predict; raise Problem with a pointer to each wrong field."""
    request = validated(PredictRequest, body)
    # a character has at most four bytes, so most texts are within the limit without encoding them
    long = [row for row, text in enumerate(request.texts) if len(text) * 4 > MAX_TEXT and len(text.encode()) > MAX_TEXT]
    if long:
        raise Problem(413, "text", f"a text has at most {MAX_TEXT:,} bytes",
                      errors=[(f"/texts/{row}", f"more than {MAX_TEXT:,} bytes") for row in long[:MAX_ERRORS]])
    if request.explain and len(request.texts) * request.k > MAX_EXPLAINED:
        sizes = f"{len(request.texts)} texts of {request.k} labels are more than {MAX_EXPLAINED}"
        raise Problem(422, "explain", f"at most {MAX_EXPLAINED} labels are explained at once",
                      errors=[("/explain", sizes)])
    request.texts = [readable(text) for text in request.texts]
    return request


def unknown_labels(error: UnknownLabel) -> Problem:
    """Return the Problem of entries that name no label; a uid that is not a plain word is not repeated."""
    errors = [(f"/{each.name}/{each.place}", _no_label(each)) for each in error.unknown[:MAX_ERRORS]]
    more = f"; and {len(error.unknown) - MAX_ERRORS:,} more" if len(error.unknown) > MAX_ERRORS else ""
    return Problem(422, "unknown-label", "; ".join(f"{pointer}: {detail}" for pointer, detail in errors) + more,
                   errors=errors)


def _no_label(entry: UnknownEntry) -> str:
    what = "concept" if entry.kind == "branch" else "label"
    detail = f"there is no {what} " + (entry.uid if PLAIN.fullmatch(f"/{entry.uid}") else "of this uid")
    return detail + ('; it is a concept: {"under": uid} names the labels under it' if entry.kind == "concept" else "")


def no_branches(error: NoBranches) -> Problem:
    """Return the Problem of a branch where the version knows none."""
    detail = "the version knows no broader relation; train it on data with a vocabulary that has one"
    return Problem(422, "no-branches", detail, errors=[(f"/{error.name}/{error.place}", detail)])


def checked_feedback(body: Any) -> FeedbackRequest:
    """Validate the body of /feedback; raise Problem with a pointer to each wrong field."""
    request = validated(FeedbackRequest, body)
    if len(request.text.encode()) > MAX_TEXT:
        too_long = f"more than {MAX_TEXT:,} bytes"
        raise Problem(413, "text", f"a text has at most {MAX_TEXT:,} bytes", errors=[("/text", too_long)])
    right, wrong = {*request.accepted, *request.added}, set(request.rejected)
    request.text = readable(request.text)
    plain = clean(request.text)    # as training reads it
    if not plain or not right | wrong:
        pointer = "/accepted" if plain else "/text"
        raise Problem(422, "invalid", "a decision is on a text that is not blank, and on a label at least",
                      errors=[(pointer, "it is empty")])
    if both := [place for place, uid in enumerate(request.rejected) if uid in right]:
        raise Problem(422, "invalid", "a label is right or wrong, not both",
                      errors=[(f"/rejected/{place}", "it is accepted or added, too") for place in both[:MAX_ERRORS]])
    return request


def validated(model: type[M], body: Any, status: int = 422, code: str = "invalid") -> M:
    """Validate the fields of a request; raise Problem of a status and code, with a pointer to each wrong one."""
    fields = ", ".join(model.model_fields)
    if isinstance(body, dict) and len(body) > MAX_FIELDS:
        raise Problem(status, code, f"a body has at most {len(model.model_fields)} fields: {fields}")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        listed = [*dict.fromkeys(_pointer_and_detail(each, model) for each in errors[:MAX_ERRORS])]
        details = [f"{pointer or 'the body'}: {detail}" for pointer, detail in listed]
        if len(errors) > MAX_ERRORS:
            details.append(f"and {len(errors) - MAX_ERRORS} more")
        if any(each["type"] == UNKNOWN for each in errors):
            details.append(f"the fields are {fields}")
        raise Problem(status, code, "; ".join(details), errors=listed) from None


def _pointer_and_detail(error: Mapping[str, Any], model: type[BaseModel]) -> tuple[str, str]:
    """Return the JSON pointer to a field and what is wrong with it.

    The sender chose the name of an unknown field, so a name that is not a plain word is not repeated.
    """
    if len(error["loc"]) > 1 and error["loc"][0] in LISTS:    # wrong as a uid and as a branch
        return f"/{error['loc'][0]}/{error['loc'][1]}", ENTRY
    pointer = "".join(f"/{part}" for part in error["loc"])
    if error["type"] in NO_OBJECT:
        return pointer, "it is no JSON object"
    if error["type"] != UNKNOWN:
        return pointer, error["msg"]
    if not PLAIN.fullmatch(pointer):
        return "", "an unknown field, whose name is not a plain word"
    near = get_close_matches(pointer[1:].lower(), model.model_fields, 1)
    return pointer, "unknown field" + (f", did you mean {near[0]}?" if near else "")
