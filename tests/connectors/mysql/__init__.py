"""Tests of the MySQL connector, against a real MariaDB server."""
