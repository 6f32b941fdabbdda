from cler.report.prose import Grid, Heading, Paragraph, pieces, split


def test_headings_paragraphs_and_tables():
    first, last = split("## What\n\nIn two\nlines.\n\n| a | b |\n|---|---:|\n| 1 | `x` |\n| 2 |  |\n")
    assert first == (Heading("What"), Paragraph("In two lines."), Grid(("a", "b"), (("1", "`x`"), ("2", ""))))
    assert last == ()


def test_what_follows_the_first_rule_comes_last():
    first, last = split("Before.\n\n---\n\nAfter.\n\n---\n")
    assert (first, last) == ((Paragraph("Before."),), (Paragraph("After."), Paragraph("---")))


def test_a_bar_alone_is_no_table():
    assert split("| not a table") == ((Paragraph("| not a table"),), ())


def test_code_stands_between_backticks():
    assert pieces("by `cler run`, then") == [("by ", False), ("cler run", True), (", then", False)]
