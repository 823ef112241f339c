"""The name under which Spark finds Oberth's data source."""
