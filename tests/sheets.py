"""Reading the sheets of a report."""


def cells(sheet):
    """The rows as dictionaries from heading to text."""
    names = [f"{column.above} {column.heading}".strip() for column in sheet.columns]
    assert len(set(names)) == len(names)
    return [dict(zip(names, (cell.text for cell in row.cells), strict=True)) for row in sheet.rows]


def strong(sheet, row):
    """The headings of the cells of a row that stand out."""
    return {sheet.columns[index].heading for index, cell in enumerate(sheet.rows[row].cells) if cell.strong}
