"""The message store: CommitLog, ConsumeQueue and Index in files that RocketMQ can open.

The engine has no event loop and no socket. Everything that touches a disk goes through
`oberth.store.files`, so that tests can put a disk underneath that forgets what was not synced.
"""
