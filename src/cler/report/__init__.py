"""Tables and figures made from results on disk."""
