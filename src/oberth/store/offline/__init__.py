"""Reading, checking and repairing the files of a store without opening it.

Nothing here needs the store engine, takes the store's lock or writes into a store's files, so all
of it may run while a broker, ours or Java's, is writing. Only `rebuild` and `salvage` write, and
only beside what they read.
"""
