"""Annif's REST shape: the version that answers as a project, for Annif's `http` backend and its clients.

The addresses, fields and bounds are those of Annif's OpenAPI description, https://github.com/NatLibFi/Annif.
"""

import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version as installed
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, RootModel

from serving import openapi
from serving.answers import ModelService, Question
from serving.feedback import FeedbackKeeper
from serving.http.guard import FORM, MAX_CONTAINERS, Problem, json_response, read_body, read_json
from serving.model_watcher import Served
from serving.openapi import PROJECT
from serving.schemas import MAX_LABELS, MAX_TEXT, MAX_UID, validated
from serving.texts import readable
from tasks.data.feedback.journal import Feedback
from xcmodels.data.text import clean

DOCUMENTS = 32                    # at most, in a batch
UNKNOWN_LANGUAGE = "und"          # BCP 47; a data set does not say in which language its texts are
WRONG = 400, "field"              # status and code of a request that is not as described

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class SuggestOptions(BaseModel):
    """Which subjects of a document are wanted; other fields are ignored, as Annif does."""

    model_config = ConfigDict(allow_inf_nan=False)
    limit: int = Field(10, ge=0, description=f"Most subjects of a document; never more than {MAX_LABELS} are given")
    threshold: float = Field(0.0, ge=0, le=1, description="Least score of a subject; a document may get none")
    language: str = Field("", description="Ignored: labels have one language")


class SuggestForm(SuggestOptions):
    """A document. Fields that begin with metadata_ describe it."""

    text: str = Field(description=f"The whole document; {MAX_TEXT:,} bytes of it are read at most")
    metadata_title: str = Field("", description="Its title, for a model that was trained on titles and contents")


class Metadata(BaseModel):
    """What is said of a document; its title is read."""

    title: str = ""


class Document(BaseModel):
    """A document of a batch."""

    model_config = ConfigDict(strict=True)
    text: str = Field(description=f"{MAX_TEXT:,} bytes of it are read at most")
    document_id: str | None = None
    metadata: Metadata = Metadata()


class SuggestBatch(BaseModel):
    """Documents, each answered alone."""

    documents: list[Document] = Field(max_length=DOCUMENTS)


class Subject(BaseModel):
    """A subject of an indexed document."""

    model_config = ConfigDict(strict=True)
    uri: str = Field(max_length=MAX_UID)
    label: str | None = Field(None, description="Ignored: the URI names the subject")


class IndexedDocument(BaseModel):
    """A document and its subjects; those that the model does not have are left out."""

    model_config = ConfigDict(strict=True)
    text: str = Field(description=f"{MAX_TEXT:,} bytes of it are read at most")
    subjects: list[Subject] = Field(max_length=MAX_LABELS)
    metadata: Metadata = Metadata()


class LearnBatch(RootModel[list[IndexedDocument]]):
    """Documents to learn from."""

    root: list[IndexedDocument] = Field(max_length=DOCUMENTS)


class Suggestion(BaseModel):
    """A subject of a document. score: the confidence that it is right, above 0, at most 1."""

    uri: str
    label: str
    notation: str | None = None
    score: float


class Suggestions(BaseModel):
    """The subjects of one document, best first."""

    results: list[Suggestion]


class DocumentSuggestions(Suggestions):
    """The subjects of a document of a batch."""

    document_id: str | None


class Backend(BaseModel):
    """How a project was trained."""

    backend_id: str


class Vocabulary(BaseModel):
    """The subjects of a project."""

    vocab_id: str
    languages: list[str]
    size: int
    loaded: bool = True


class Project(BaseModel):
    """The version that answers. modification_time: when it was registered."""

    project_id: str
    name: str
    language: str = UNKNOWN_LANGUAGE
    backend: Backend
    vocab: Vocabulary
    vocab_language: str = UNKNOWN_LANGUAGE
    is_trained: bool = True
    modification_time: datetime


class Projects(BaseModel):
    """All projects: one."""

    projects: list[Project]


class ApiInfo(BaseModel):
    """What answers at this address."""

    title: str
    version: str = Field(description="Of xcflow")


def add_annif(app: FastAPI, service: ModelService, keeper: FeedbackKeeper | None) -> None:
    """Add the routes of Annif's REST API; keeper: of what it learns, None = it learns nothing."""
    @app.get("/v1/", **openapi.document("/v1/", "get"))
    async def info() -> ApiInfo:
        """Name this server, as Annif's clients ask."""
        return ApiInfo(title="xcflow, in the shape of Annif's REST API", version=installed("xcflow"))

    @app.get("/v1/projects", **openapi.document("/v1/projects", "get"))
    async def projects() -> Projects:
        """Return the version that answers as the only project."""
        return Projects(projects=[_project(service.current())])

    @app.get(PROJECT, **openapi.document(PROJECT, "get"))
    async def project(request: Request) -> Project:
        """Return the version that answers as a project, whose id is the model's name."""
        return _project(_named(service.current(), request))

    @app.post(f"{PROJECT}/suggest", response_model=Suggestions,
              **openapi.document(f"{PROJECT}/suggest", "post", SuggestForm, form=True))
    async def suggest(request: Request) -> Response:
        """Return the best subjects of a document."""
        options = validated(SuggestForm, parsed_form(await read_body(request, FORM)), *WRONG)
        served = _named(service.answering(), request)
        [found] = await _suggested(service, served, [(options.text, options.metadata_title)], options)
        return json_response({"results": found})

    @app.post(f"{PROJECT}/suggest-batch", response_model=list[DocumentSuggestions],
              **openapi.document(f"{PROJECT}/suggest-batch", "post", SuggestBatch, query=SuggestOptions))
    async def suggest_batch(request: Request) -> Response:
        """Return the best subjects of each document."""
        documents = validated(SuggestBatch, await read_json(request), *WRONG).documents
        options = validated(SuggestOptions, dict(request.query_params), *WRONG)
        served = _named(service.answering(), request)
        found = await _suggested(service, served, [(each.text, each.metadata.title) for each in documents], options)
        return json_response([{"results": results, "document_id": each.document_id}
                              for each, results in zip(documents, found, strict=True)])

    @app.post(f"{PROJECT}/learn", status_code=204, **openapi.document(f"{PROJECT}/learn", "post", LearnBatch))
    async def learn(request: Request) -> Response:
        """Keep documents with their subjects for the next training; answered once they are on the disk."""
        documents = validated(LearnBatch, await read_json(request), *WRONG).root
        served = _named(service.answering(), request)
        if keeper is None:
            raise Problem(403, "feedback", "this server takes no feedback: xc serve --feedback refuse")
        if feedback := list(_feedback(served, documents)):
            await keeper.write(feedback, served, request.client.host if request.client else "")
        return Response(status_code=204)


def _feedback(served: Served, documents: list[IndexedDocument]) -> Iterator[Feedback]:
    """Yield what is learned of documents: subjects that the version has, as right; those of none are left out."""
    for each in documents:
        uris = list(dict.fromkeys(subject.uri for subject in each.subjects))
        known = [uri for uri, label in zip(uris, served.retriever.ids(uris).tolist(), strict=True) if label >= 0]
        title, content = fields_of(served, _cut(each.text), _cut(each.metadata.title))
        if known and clean(title + content):
            yield Feedback(title, accepted=known, content=content)


async def _suggested(service: ModelService, served: Served, documents: list[tuple[str, str]],
                     options: SuggestOptions) -> list[list[dict[str, Any]]]:
    """Return the suggestions for each document (text, title)."""
    if not options.limit:
        return [[] for _ in documents]
    fields = [fields_of(served, _cut(text), _cut(title)) for text, title in documents]
    answers = await service.ask(served, [
        Question(served, title, min(options.limit, MAX_LABELS), options.threshold, content=content)
        for title, content in fields])
    return [[{"uri": label["uid"], "label": label["text"], "notation": None, "score": label["confidence"]}
             for label in labels if label["confidence"] > 0] for labels in answers]


def fields_of(served: Served, text: str, title: str) -> tuple[str, str]:
    """Return a document's (title, content) as the training texts have them, see `tasks.data.sources.annif`.

    Short texts were imported as titles; full texts, and texts with a title among their metadata, as contents.
    """
    if served.trained_on_contents:
        return title, text
    return (text if clean(text) else title), ""


def _cut(text: str) -> str:
    """Return what can be read of the first MAX_TEXT bytes of a text: more than a model reads of any document."""
    return readable(text if len(text) * 4 <= MAX_TEXT else text.encode()[:MAX_TEXT].decode(errors="ignore"))


def parsed_form(body: bytes) -> dict[str, str]:
    """Parse application/x-www-form-urlencoded; raise Problem where it is invalid or has too many fields.

    It takes a few milliseconds a megabyte; urllib's parser takes most of a second for one that is all percent signs,
    and would block every other request.
    """
    if body.count(b"&") >= MAX_CONTAINERS:
        raise Problem(413, "values", f"the form has at most {MAX_CONTAINERS:,} fields")
    if _BAD_ESCAPE.search(body):
        raise Problem(400, "form", "a percent sign in the form is not followed by two hexadecimal digits")
    pairs = [pair.partition(b"=")[::2] for pair in body.split(b"&") if pair]
    try:
        fields = {_unquoted(name): _unquoted(value) for name, value in pairs}
    except UnicodeDecodeError:
        raise Problem(400, "form", "the form is not UTF-8") from None
    if len(fields) < len(pairs):
        raise Problem(400, "form", "a field of the form is given twice")
    return fields


def _unquoted(quoted: bytes) -> str:
    """Decode the escapes of a form. Those of quoted-printable are the same but for the sign, and decoded in C."""
    return binascii.a2b_qp(quoted.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"=")).decode()


def _named(served: Served, request: Request) -> Served:
    """Return the version that answers if it is of the project in the address; raise Problem where it is of another."""
    if request.path_params["project_id"] != served.name:
        raise Problem(404, "project", "there is no such project; /v1/projects lists the one that there is")
    return served


def _project(served: Served) -> Project:
    return Project(
        project_id=served.name, name=f"{served.name} version {served.version}",
        backend=Backend(backend_id=f"xcflow {served.retriever.facts['method']}"),
        vocab=Vocabulary(vocab_id=served.name, languages=[UNKNOWN_LANGUAGE], size=len(served.retriever)),
        modification_time=datetime.fromtimestamp(served.registered, UTC))
