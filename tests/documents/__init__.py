"""The generated parts of the documents: `make docs` writes them, tests/test_documents.py compares them."""
