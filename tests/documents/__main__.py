"""Write the generated parts of the documents anew: `make docs`."""

from tests.conftest import PROJECT
from tests.documents import parts

if __name__ == "__main__":
    for name, make in parts.generated().items():
        (PROJECT / name).write_text(make())
