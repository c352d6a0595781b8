"""Tables: the output of a processor in a table format, which names our files, by one committer for each table."""
