"""Export of a store to tables: Parquet, Delta, Iceberg; once each message, whatever is killed."""
