"""A page of the console each; `routes` of a module are its part of the application."""
