"""The documents are read as Markdown: code spans with their lines and cells, code blocks are no spans."""

from tests.repository.documents import blocks, read_spans, spans

TEXT = """# Title

A `first
span`, and ``a ` b``.

```sh
no `span`
```

| name | text |
|---|---|
| `c \\| d` | e, `f` |
"""


def test_a_span_has_its_line_and_its_cell() -> None:
    first, second, *cells = read_spans("page.md", TEXT)
    assert (first.line, first.text, first.column) == (3, "first span", "")
    assert (second.line, second.text) == (4, "a ` b")
    assert [(cell.line, cell.text, cell.column) for cell in cells] == [(12, "c \\| d", "name"), (12, "f", "text")]
    assert cells[1].row["name"] == "`c \\| d`"
    assert first.problem("is gone") == "page.md:3: is gone"


def test_all_documents_are_read() -> None:
    assert {"README.md", "SECURITY.md", "docs/serve.md", "docs/gateway.md"} <= {span.document for span in spans()}
    assert len(list(blocks("sh"))) > 50
    assert len(list(blocks("toml"))) > 10
