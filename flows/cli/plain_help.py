"""Help without boxes: each command or option is a paragraph, wrapped once."""

import io
import textwrap

from cyclopts.help import HelpPanel
from cyclopts.help.formatters.plain import PlainFormatter
from rich.console import Console, ConsoleOptions

UNWRAPPED = 100_000    # columns; no entry is as long


class PlainHelp(PlainFormatter):
    """The plain help of cyclopts, which itself wraps a description alone, and once more behind its name."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print a panel: its title, and its entries as wide as the console."""
        page = io.StringIO()
        super().__call__(Console(file=page, width=UNWRAPPED), options, panel)
        for line in page.getvalue().splitlines():
            entry = line.startswith(self.indent)
            wrapped = textwrap.wrap(line.strip(), max(console.width, 20), initial_indent=self.indent * entry,
                                    subsequent_indent=self.indent * 3 * entry, break_long_words=False,
                                    break_on_hyphens=False)
            self._print_plain(console, "\n".join(wrapped))
