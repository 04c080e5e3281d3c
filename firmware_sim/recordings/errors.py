"""The one error tree of the recordings package: every way in which a file cannot become a `Recording`.

A reader knows the place inside the file and not the file's name, which only `read` knows. So a reader raises with the
place and `read` writes the file's name into the error on its way out.
"""


class RecordingError(Exception):
    """A file cannot be read as a recording.

    The message names file, place (line, column, byte or array), what was found, and what to do.
    """

    def __init__(self, place: str, problem: str, remedy: str) -> None:
        super().__init__(place, problem, remedy)
        self.file = ""
        self.place = place
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.file, self.place) if part)
        return f"{where}: {self.problem}; {self.remedy}"


class FileAccessError(RecordingError):
    """The operating system does not hand the file over: absent, a folder, not permitted, too large."""


class UnknownFormatError(RecordingError):
    """No reader is registered for the file's ending."""


class DamagedError(RecordingError):
    """The content breaks the rules of its format: cut, garbled, inconsistent."""


class ChoiceError(RecordingError):
    """The file is sound, but an option is missing, contradicts the file, or means nothing for this format."""


class MissingLibraryError(RecordingError):
    """The library that reads this format is not installed."""
