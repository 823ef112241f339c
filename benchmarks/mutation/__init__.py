"""Mutation of the code that promises something: what changes, which tests reach it, who notices."""
