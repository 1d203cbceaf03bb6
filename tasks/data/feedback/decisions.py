"""Decisions on texts: what all feedback on a text says in the end, label by label, the last word first."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.data.feedback.journal import Feedback
from tasks.data.sources.train_test import key_of
from xcmodels.data.text import clean


@dataclass(frozen=True)
class Decision:
    """The labels of a text that are right and those that are wrong, by uid; line: the last in the journal on it.

    text: title and content with a space between, where it has both.
    """

    title: str
    content: str
    right: Sequence[str]
    wrong: Sequence[str]
    line: int

    @property
    def text(self) -> str:
        return f"{self.title} {self.content}".strip()

    def held_out(self, share: float) -> bool:
        """Return whether the text is one of the share that measures what feedback changed; it stays so for ever."""
        return (key_of("held out", self.text) >> 32) / 2**32 < share


@dataclass(frozen=True)
class Decisions:
    """All decisions on the texts of one model, in the order in which their texts came first; journal: its file."""

    journal: str = ""
    items: Sequence[Decision] = ()

    def __len__(self) -> int:
        return len(self.items)

    @classmethod
    def of(cls, feedback: Sequence[Feedback], journal: str = "") -> "Decisions":
        """Fold feedback: of a label that was accepted and rejected for the same text, the later line counts."""
        says: dict[str, dict[str, bool]] = {}    # by title and content joined, as training texts are found
        last: dict[str, tuple[str, str, int]] = {}
        for line, post in enumerate(feedback, start=1):
            title, content = clean(post.text), clean(post.content)
            text = f"{title} {content}".strip()
            labels = says.setdefault(text, {})
            labels.update(dict.fromkeys(post.rejected, False) | dict.fromkeys((*post.accepted, *post.added), True))
            last[text] = title, content, line
        return cls(journal, [Decision(*last[text][:2], sorted(uid for uid, right in labels.items() if right),
                                      sorted(uid for uid, right in labels.items() if not right), last[text][2])
                             for text, labels in says.items() if text])


NO_FEEDBACK = Decisions()
