"""`python -m nws.experiment.options.schemas`: write conf/ and docs/configuration.md."""

from pathlib import Path

from nws.experiment.options.configuration import CONF
from nws.experiment.options.schemas.tables import with_tables
from nws.experiment.options.schemas.writer import files


def write() -> None:
    """Write every file that is made from the schemas, where it differs."""
    page = CONF.parent / "docs" / "configuration.md"
    made = {CONF / name: text for name, text in files(CONF).items()}
    made |= {page: with_tables(page.read_text())}
    for path, text in made.items():
        if not Path(path).is_file() or path.read_text() != text:
            path.write_text(text)
            print(path)


if __name__ == "__main__":
    write()
