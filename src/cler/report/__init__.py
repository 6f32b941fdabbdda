"""Tables, figures and reports on finished runs."""
